"""How large the demo is."""

from __future__ import annotations

from dataclasses import dataclass

_MANY = 8


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

    @property
    def steps(self) -> str:
        """Steps of a release: which devices are in which is chance, so that few devices need larger ones.

        That no device is in a step before the last, and a version can't be stopped before it is everywhere,
        happens once in 10,000 runs with 4 devices and once in 65,000 with 8.
        """
        return "40%,75%,100%" if self.devices >= _MANY else "60%,90%,100%"


QUICK = Plan(
    devices=4,
    events_per_device=1200,
    events_per_s=30.0,
    replay_s=2.0,
    epochs=1,
    ranker_epochs=1,
    ranker_networks=1,
    users=240,
    trials=1,
    trial_s=1.0,
)
"""For tests and benchmarks in a hurry."""
