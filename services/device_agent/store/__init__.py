"""What survives: one SQLite file, and the guarantees that the rest of the agent builds on.

* **Durable before acknowledged.** An answer that promises durability comes after `synchronous=FULL` has
  returned. What can be derived anew (a batch's runs from its events) is committed without waiting for the
  disk; SQLite's log keeps commits in order, so a power cut takes such a commit only together with all later
  ones.
* **Each function in one transaction.** The functions of this package take a connection and do reads and
  writes that belong together; `Database.run` commits all of a function or nothing. An event's position moves
  with the runs that it triggered; a run goes with its result, frames, counters and verdict; a version's
  state changes with the report that it owes.
* **Order.** Functions run one after another in the order of their calls. Events have a place, `seq`, that
  never changes and is never used twice.
* **Bounds.** Nothing here grows without end: events by retention, runs by each task's limit, results and
  frames by count and bytes, tombstones by starting a stream's epoch anew.

There is no second implementation to run these guarantees over: they *are* SQLite's transactions, and a fake
would only repeat them. Tests use the real thing in a temporary folder; it opens in a millisecond.

`database` is the thread that owns the file; `schema` the tables; `values`, `events`, `runs`, `frames` and
`versions` the functions.
"""
