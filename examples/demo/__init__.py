"""The main job on real data: `python -m examples.demo`, or `make demo`."""
