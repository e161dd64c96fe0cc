"""The device agent: events in, triggers, task runs, results out; tasks pulled and verified; one process.

    events (socket, file) ──ingest──► store ──running──► trigger trie ──► waiting runs ──► task VM
                                        ▲                                                     │
    cloud ◄──tunnelling── frames ◄──────┴──── result, frames, counts: one transaction ◄───────┘
    cloud ──pulling──► signed set ──► staging (files) ──► load check ──► activation ──► health ──► reports

Read in this order: `config` and `app` (what there is), `store` (what survives), `domain` (what is decided),
then the loops `ingest`, `running`, `pulling`, `watching`, `tunnelling`, `housekeeping`; `asking` is what
running scripts ask models in the cloud, from the task VM into the tunnel and back; `cloud` and `identity` are
how the agent speaks to the gateway, `service` how apps on the device speak to it.

Everything that the agent knows lives in one SQLite file and in the folders of verified versions beside it.
A kill -9 at any moment loses nothing that was acknowledged and repeats no effect: an event's position, the
runs that it triggered, a run's result and frames each change in one transaction with what caused them.
"""

AGENT_VERSION = "0.3.0"
