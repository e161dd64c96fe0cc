"""How large the demo is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be chosen about a run."""

    devices: int = 8
    events_per_device: int = 3000
    events_per_s: float = 24.0
    """On each device, while nothing else goes on."""
    replay_s: float = 20.0
    """How long the histories run on the good version before anything else happens."""
    epochs: int = 4
    """Most epochs of the device's model."""
    ranker_epochs: int = 5
    ranker_networks: int = 2
    """How many the larger model averages."""
    users: int = 0
    """Users whose ratings are taken, without --data; 0 takes all."""
    trials: int = 6
    """Most trials of the tuner."""
    trial_s: float = 2.0
    """Measured time of a trial."""
    deadline_s: float = 420.0
    """Nothing may take longer than this, all together."""


QUICK = Plan(
    devices=4,
    events_per_device=1200,
    events_per_s=30.0,
    replay_s=3.0,
    epochs=1,
    ranker_epochs=1,
    ranker_networks=1,
    users=240,
    trials=2,
    trial_s=1.0,
)
"""For tests and benchmarks in a hurry."""
