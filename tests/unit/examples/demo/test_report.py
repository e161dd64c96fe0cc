"""What the demo tells: words for figures, and what was wrong of what was refused."""

import pytest

from examples.demo.counting import _why
from examples.demo.releases import gist
from examples.demo.report import LABELS, Report


def test_figures_have_words_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("test")
    report.figures |= {"coverage_of_step_40%_s": 2.0, "goodput_before_rps": 1234.0, "request_bytes": 2048}
    report.figures |= {"sent_up_share": 0.5, "asked": 7}
    report.show(as_json=False)
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "step of 40 %: release to coverage 2.0 s" in said
    assert "answers in time before tuning 1,234 /s" in said
    assert "size of the requests 2.0 KiB" in said
    assert "uncertain, so sent up 50.00 %" in said
    assert "results that were uncertain 7" in said


def test_no_words_are_used_twice_in_one_table() -> None:
    assert len(set(LABELS.values())) == len(LABELS)


def test_of_a_traceback_what_was_wrong_is_told() -> None:
    text = (
        "click@1.1.0 failed its pre-flight with EXCEPTION: line 1 of the events ('page_enter'): "
        'Traceback (most recent call last):\n  File "click@1.1.0/click.py", line 54, in post\n'
        "    click = float(outputs['clicks'][0])\n            ~~~~~~~^^^^\nKeyError: 'clicks'\n"
    )
    assert gist(text) == (
        "click@1.1.0 failed its pre-flight with EXCEPTION: line 1 of the events ('page_enter'): "
        "KeyError: 'clicks'"
    )
    assert gist("a\n  b") == "a b"
    assert gist("x" * 300) == "x" * 200 + "…"


def test_each_request_without_an_answer_in_time_is_accounted_for() -> None:
    assert _why(6, 4).startswith("to 6 the answer came too late, to 4 none came: ")
