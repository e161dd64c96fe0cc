"""What benchmarks print: a table for people, and a last line for machines."""

import json

import pytest

from benchmarks import compute
from benchmarks.report import show


def test_the_last_line_holds_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    show({"fast_us": 4.00004, "slow_us": 5.5, "other": 1}, {"fast_us": 5.0, "slow_us": 5.0})
    *table, last = capsys.readouterr().out.splitlines()
    assert last == 'RESULT {"values": {"fast_us": 4.0, "slow_us": 5.5, "other": 1}}'
    assert json.loads(last.removeprefix("RESULT "))
    verdicts = {line.split()[0]: line.split()[-1] for line in table}
    assert (verdicts["fast_us"], verdicts["slow_us"], verdicts["other"]) == ("met", "MISSED", "1.000")


def test_kernels_are_counted_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    compute.show_workload()
    lines = capsys.readouterr().out.splitlines()
    saved = {int(line.split()[0]): line.split()[-2] for line in lines if line.rstrip().endswith("%")}
    assert set(saved) == set(compute.BACKENDS)
    # Each operator's rule is written once: the more backends, the more is saved.
    assert sorted(map(int, saved.values())) == [int(saved[backends]) for backends in compute.BACKENDS]
