"""What may lie in a task's folder."""

import json
import os
from pathlib import Path

import pytest

from libs.cli.folder import read_task
from libs.cli.main import main
from libs.common.errors import Invalid, NotFound
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert main(["task", "init", "clicks", "--folder", str(tmp_path / "clicks")]) == 0
    return tmp_path / "clicks"


def test_a_good_folder_is_read(folder: Path) -> None:
    source, manifest, checked = read_task(folder)
    assert (checked.key, manifest.task) == ("clicks@1.0.0", "clicks")
    assert source.files == (folder / "main.py",)


@pytest.fixture
def with_model(folder: Path) -> Path:
    """The folder with a model phase and its plan."""
    task = json.loads((folder / "task.json").read_text())
    task["phases"] = [{"kind": "pre", "script": "main.py", "entry_point": "run"}]
    task["phases"].append({"kind": "model", "plan": "click.plan"})
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "click.plan").write_bytes(encode(linear_plan([1.0])))
    return folder


def test_a_plan_is_one_of_the_files(with_model: Path) -> None:
    source, manifest, checked = read_task(with_model)
    assert source.files == (with_model / "main.py", with_model / "click.plan")
    assert checked.model is not None
    assert manifest.plans[0].blob.size_bytes == (with_model / "click.plan").stat().st_size


def test_a_plan_that_no_device_can_run_is_refused(with_model: Path) -> None:
    good = (with_model / "click.plan").read_bytes()
    (with_model / "click.plan").write_bytes(good[:-1])
    with pytest.raises(Invalid, match=r"click\.plan: plan: "):
        read_task(with_model)
    (with_model / "click.plan").write_bytes(b"\x08\x09" + good[2:])
    with pytest.raises(Invalid, match=r"click\.plan: plan is of format 9\.0"):
        read_task(with_model)
    with (with_model / "click.plan").open("wb") as file:
        file.truncate(256 * 1024**2 + 1)
    with pytest.raises(Invalid, match=r"click\.plan: has 256.0 MiB, more than 256.0 MiB"):
        read_task(with_model)


@pytest.mark.parametrize("name", ["task.json", "main.py"])
def test_what_is_no_plain_file_is_refused_without_opening_it(name: str, folder: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(Invalid, match=f"{name}: is a pipe, device or socket"):
        read_task(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(Invalid, match=f"{name}: is a folder"):
        read_task(folder)


def test_a_size_is_looked_at_before_the_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "main.py").open("wb") as file:
        file.truncate(1024**3)  # Of nothing: it takes no room, but long to read.
    monkeypatch.setattr("libs.cli.folder.blob_of", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(Invalid, match=r"main\.py: has 1.0 GiB, more than 1.0 MiB"):
        read_task(folder)


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(folder: Path) -> None:
    (folder / "main.py").rename(folder / "real.py")
    (folder / "main.py").symlink_to("real.py")
    read_task(folder)
    (folder / "real.py").rename(folder.parent / "real.py")
    (folder / "main.py").unlink()
    (folder / "main.py").symlink_to("../real.py")
    with pytest.raises(Invalid, match=r"main\.py: is a link to .*real.py, outside the task's folder"):
        read_task(folder)


def test_links_that_lead_nowhere_are_named(folder: Path) -> None:
    (folder / "main.py").unlink()
    (folder / "main.py").symlink_to("gone.py")
    with pytest.raises(NotFound, match=r"gone\.py: No such file"):
        read_task(folder)
    (folder / "main.py").unlink()
    (folder / "main.py").symlink_to("main.py")
    with pytest.raises(Invalid, match=r"main\.py"):
        read_task(folder)


def test_a_folder_that_is_itself_reached_by_a_link_is_fine(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert read_task(tmp_path / "link")[2].key == "clicks@1.0.0"


@pytest.mark.parametrize("name", ["task.json", "main.py"])
def test_a_byte_order_mark_is_no_fault(name: str, folder: Path) -> None:
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(b"\xef\xbb\xbf" + text)
    assert read_task(folder)[2].key == "clicks@1.0.0"


def test_faults_behind_a_byte_order_mark_are_placed_right(folder: Path) -> None:
    text = (folder / "task.json").read_text().replace('"event"', '"evnt"', 1)
    (folder / "task.json").write_text("\ufeff" + text)
    line = text[: text.index('"evnt"')].count("\n") + 1
    with pytest.raises(Invalid, match=f"task.json: line {line}, .*did you mean 'event'"):
        read_task(folder)
