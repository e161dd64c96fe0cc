"""Build the client's wheel; see the package."""

import subprocess

from deploy.stubs.build import ROOT, build

try:
    wheel = build(ROOT / "build" / "stubs")
except subprocess.CalledProcessError as error:
    raise SystemExit(f"stubs: the wheel could not be built:\n{error.stderr}") from error
shown = wheel.relative_to(ROOT)
print(f"{shown}\nuse it anywhere: pip install {shown}; then `from isthmus.client import connect`")
