"""The `isthmus` command: one group a file in `groups/`, found through the entry points `isthmus.cli`."""
