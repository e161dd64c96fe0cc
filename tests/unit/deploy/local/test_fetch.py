"""Finding and fetching Prometheus, with stand-ins for apt-get and dpkg-deb on PATH."""

import stat
from pathlib import Path

import pytest

from deploy.local import fetch
from deploy.local.errors import StackError
from deploy.local.fetch import find_grafana, find_prometheus


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with the shell's tools and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "mkdir", "touch", "cat", "chmod", "sleep"):
        (folder / tool).symlink_to(
            next(p for p in (Path("/bin") / tool, Path("/usr/bin") / tool) if p.exists())
        )
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


APT = """
echo "$@" >> "{log}"
for last; do :; done
case "$*" in *download*) touch prometheus_1_amd64.deb;; esac
"""
DPKG = """
mkdir -p "$3/usr/bin"
printf '#!/bin/sh\\nexit 0\\n' > "$3/usr/bin/prometheus"
chmod +x "$3/usr/bin/prometheus"
"""


def silent(text: str) -> None:
    """Tell nobody."""


def test_an_installed_one_is_used(path: Path, tmp_path: Path) -> None:
    program(path / "prometheus", "exit 0")
    assert find_prometheus(tmp_path / "cache", silent) == path / "prometheus"
    assert not (tmp_path / "cache").exists()


def test_it_is_fetched_once_without_root(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "apt.log"
    program(path / "apt-get", APT.format(log=log))
    program(path / "dpkg-deb", DPKG)
    said: list[str] = []
    binary = find_prometheus(tmp_path / "cache", said.append)
    assert binary == tmp_path / "cache" / "prometheus" / "bin" / "prometheus"
    assert said == ["fetching Prometheus (Debian's package, once)"]
    calls = log.read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["update", "prometheus"]
    # Neither of them touches the lists and archives of the system, which take root.
    assert all(f"Dir::State={tmp_path}" in call and f"Dir::Cache={tmp_path}" in call for call in calls)
    assert find_prometheus(tmp_path / "cache", said.append) == binary
    assert len(said) == 1
    assert [child.name for child in (tmp_path / "cache").iterdir()] == ["prometheus"]


@pytest.mark.parametrize(
    ("apt", "dpkg", "expected"),
    [
        (
            "echo 'W: slow' >&2; echo 'E: no such host' >&2; exit 100",
            DPKG,
            "`apt-get` failed: E: no such host",
        ),
        ("exit 7", DPKG, "`apt-get` failed: exit status 7"),
        ("exit 0", DPKG, "downloaded no package"),
        (APT.format(log="/dev/null"), "echo 'not a package' >&2; exit 2", "`dpkg-deb` failed: not a package"),
        (APT.format(log="/dev/null"), "exit 0", "unpacked"),
        (
            APT.format(log="/dev/null"),
            DPKG.replace("exit 0", "exit 127"),
            "doesn't run here: exit status 127",
        ),
    ],
)
def test_why_it_is_not_to_be_had(path: Path, tmp_path: Path, apt: str, dpkg: str, expected: str) -> None:
    program(path / "apt-get", apt)
    program(path / "dpkg-deb", dpkg)
    with pytest.raises(StackError) as caught:
        find_prometheus(tmp_path / "cache", silent)
    assert expected in str(caught.value)
    left = [child for child in (tmp_path / "cache").iterdir() if child.name.startswith(".")]
    assert left == []


def test_a_machine_without_debians_tools(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no `apt-get` here"):
        find_prometheus(tmp_path / "cache", silent)


def test_a_fetch_that_hangs_is_ended(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path / "apt-get", "exec sleep 600")
    program(path / "dpkg-deb", DPKG)
    monkeypatch.setattr(fetch, "FETCH_S", 0.2)
    with pytest.raises(StackError, match="`apt-get` was not done after"):
        find_prometheus(tmp_path / "cache", silent)


def test_grafana_is_used_where_it_is_found(path: Path) -> None:
    with pytest.raises(StackError, match="no grafana-server on PATH"):
        find_grafana()
    program(path / "grafana", "exit 0")
    assert find_grafana() == path / "grafana"
    program(path / "grafana-server", "exit 0")
    assert find_grafana() == path / "grafana-server"
