"""What a task is: one grammar and one set of checks for deployer, agent and command line.

In the order in which a task meets them:

* `jsontext` reads JSON strictly and turns a JSON path back into line and column;
* `expression`, `duration`, `trigger`, `event` and `pipeline` are the grammar: when a task runs and what it
  sees;
* `uploads` and `endpoints` are what may leave the device: frames, and requests to models in the cloud;
* `script` compiles a phase's source for its errors;
* `manifest` checks a whole `TaskManifest`; `source` turns a human's `task.json` into one;
* `profile` is the digest of the versions on a device, for the push hint.

Everything here is pure: no IO, no clock, no environment. Everything raises `libs.common.errors.Invalid` and
nothing else for bad input, whatever the input.
"""
