"""Sizes as people read them in messages."""

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size_text(count: int) -> str:
    """Return a number of bytes for people, to four digits: "1 byte", "1.5 KiB", "512 MiB"."""
    for unit, factor in _UNITS:
        if count >= factor:
            return f"{round(count / factor, 3 if count < 10 * factor else 1):,g} {unit}"
    return "1 byte" if count == 1 else f"{count} bytes"
