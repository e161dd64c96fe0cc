"""What every benchmark prints in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def show(values: Mapping[str, float], targets: Mapping[str, float]) -> None:
    """Print figures beside the targets that they must not exceed, and the last line, which machines read."""
    table = Table("FIGURE", "MEASURED", "TARGET", "", box=None, header_style="bold")
    for name, value in values.items():
        target = targets.get(name)
        verdict = "" if target is None else ("met" if value <= target else "MISSED")
        table.add_row(name, f"{value:.3f}", "" if target is None else f"≤ {target:g}", verdict)
    Console(width=100, highlight=False).print(table)
    rounded = {name: round(value, 4) for name, value in values.items()}
    sys.stdout.write("RESULT " + json.dumps({"values": rounded}) + "\n")
