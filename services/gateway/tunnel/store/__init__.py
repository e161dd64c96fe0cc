"""Where frames are kept: the `Log` protocol (`log.py`), in memory (`memory.py`), on files (`files.py`).

The file log from the inside out: `codec.py` (bytes of a block), `scan.py` (what of a segment's bytes is
whole), `segment.py` (one file), `checkpoint.py` (the marks' file), `partition.py` (segments, recovery,
retention; synchronous), `files.py` (a writer thread for each partition, group commit, asyncio).
"""
