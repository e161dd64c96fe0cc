"""Real models after a few changes: refused with a reason, or as their peers say; never a crash."""

from __future__ import annotations

import pytest

from services.engine.testing_graphs.real import real_models
from services.engine.testing_graphs.trials import MutatedModels, run_all

pytestmark = pytest.mark.timeout(600)
COUNT = 1500


def test_changed_models_are_refused_or_do_as_their_peers() -> None:
    trial = MutatedModels(real_models())
    outcomes = list(run_all(trial, range(COUNT), timeout_s=60))
    wrong = [
        f"seed {outcome.seed}: {outcome.text}\n{trial.text(outcome.seed)}"
        for outcome in outcomes
        if not outcome.is_good
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(outcome.text == "equal" for outcome in outcomes) > COUNT / 10
