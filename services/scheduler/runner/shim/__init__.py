"""One worker's keeper: starts its program, watches it, ends it, and writes down how it ended.

Each worker has a process of this of its own, which the runner starts and which outlives the runner:

    python -I -S -E shim/boot.py FOLDER LOCK_FD READY_FD

It holds a lock on `FOLDER/lock` as long as it lives (nobody else has that descriptor), so that a later
runner knows whether there is a keeper without trusting process ids. It reads `FOLDER/launch`, writes
`FOLDER/shim` (who it is), `FOLDER/running` (what it started), `FOLDER/log` (what that wrote) and at last
`FOLDER/exit`. Somebody who wants the end renames `FOLDER/stop.none` to `FOLDER/stop.<REASON>`: a rename
needs no room on a full disk, and is still there after whoever asked has died. SIGUSR1 only makes it look
sooner.

All files but the log hold `key=value` entries, each ended by a NUL byte. This package imports nothing of
ours and little of Python's, so that it starts in milliseconds.
"""
