"""`isthmus tune run`: what its flags take."""

import pytest

from isthmus.tuner.v1 import tuner_pb2
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--duration", "11m"), "11m is too long; it may be 10m at most"),
        (("--duration", "500ms"), "500ms is too short; it must be 1s at least"),
        (("--target-latency", "2m"), "2m is too long; it may be 60s at most"),
        (("--deadline", "8d"), "8d is too long; it may be 7d at most"),
        (("--rate", "200000"), "200000"),
        (("--trials", "1001"), "1001"),
    ],
)
def test_what_the_tuner_would_refuse_is_refused_where_it_is_typed(
    cloud: FakeCloud, isthmus: Isthmus, arguments: tuple[str, ...], said: str
) -> None:
    ran = isthmus("tune", "run", "ranker", "--vary", "max_batch_rows=1,4", *arguments)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not cloud.tuner.asked(tuner_pb2.CreateExperimentRequest)


def test_negative_values_are_read_as_such(cloud: FakeCloud, isthmus: Isthmus) -> None:
    ran = isthmus("tune", "run", "ranker", "--vary", "max_batch_rows=-1,4", "--at-most", "p99_ms=-5.5")
    assert ran.code == 0, ran.err
    (asked,) = cloud.tuner.asked(tuner_pb2.CreateExperimentRequest)
    assert list(asked.spec.parameters[0].values) == [-1, 4]
    assert asked.spec.constraints[0].at_most == -5.5
