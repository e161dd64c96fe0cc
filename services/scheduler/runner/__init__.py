"""The node runner: starts, watches and ends workers on one machine, and tells the scheduler."""
