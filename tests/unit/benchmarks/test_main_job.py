"""What the benchmark takes out of a demo's report."""

import json

import pytest

from benchmarks.main_job import values
from examples.demo.report import Report


def test_the_figures_are_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("t")
    report.figures |= {
        "demo_s": 200.0,
        "device_run_p99_ms": 7.0,
        "cascade_run_p99_ms": 30.0,
        "bytes_saved_share": 0.5,
    }
    auc = {"device": 0.76, "cascade": 0.77, "cloud": 0.78, "ftrl_frozen": 0.6, "ftrl_prequential": 0.7}
    report.compare("whole test part", 100, auc)
    report.compare("seen by devices", 10, dict.fromkeys(auc, 0.1))
    report.show(as_json=True)
    found = values(json.loads(capsys.readouterr().out))
    assert found == {
        "demo_s": 200.0,
        "device_p99_ms": 7.0,
        "cascade_p99_ms": 30.0,
        "auc_device": 0.76,
        "auc_cascade": 0.77,
        "auc_ftrl": 0.7,
        "bytes_saved_share": 0.5,
    }


def test_a_report_without_a_figure_gives_none() -> None:
    with pytest.raises(KeyError):
        values({"figures": {"demo_s": 1.0}, "auc": {"whole test part": {"device": 0.5}}})
