import pytest

from services.scheduler.__main__ import main


def test_an_unknown_role_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--role", "runer"]) == 2
    assert "'runer' is none of scheduler, runner" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--role=scheduler", "--help"]])
def test_help_tells_the_settings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "ISTHMUS_SCHEDULER_ETCD_ENDPOINTS" in capsys.readouterr().out
