"""The groups of the `isthmus` command, one a file."""
