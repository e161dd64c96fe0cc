"""What the command says of versions, signatures and keys, on a real stack."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.stack import Stack
from libs.cli.main import main
from libs.trust.keys import SigningKey
from tests.integration.system.world import Cloud, CommandFailed, run_isthmus, tenant, until


@pytest.fixture
def cloud(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Cloud]:
    """A tenant for one test."""
    name = request.node.name.replace("_", "-")[5:40].strip("-")
    with tenant(stack, name) as cloud:
        yield cloud


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A small task."""
    run_isthmus("task", "init", "clicks", "--folder", str(tmp_path / "clicks"), "--json")
    return str(tmp_path / "clicks")


def publish(cloud: Cloud, folder: str, *flags: str) -> dict[str, Any]:
    (version,) = cloud.isthmus("task", "publish", folder, "--keys", str(cloud.home / "keys"), *flags)
    found: dict[str, Any] = version
    return found


def new_version(folder: str, version: str) -> None:
    path = Path(folder) / "task.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))


def test_publishing_says_what_came_of_it(cloud: Cloud, folder: str) -> None:
    assert publish(cloud, folder, "--dry-run")["outcome"] == "checked"
    with pytest.raises(CommandFailed) as nothing:
        cloud.isthmus("task", "get", "clicks")
    assert "has no version yet" in nothing.value.error["message"]
    first = publish(cloud, folder)
    assert first["outcome"] == "published"
    again = publish(cloud, folder)
    assert again["outcome"] == "already_published"
    assert again["create_time"] == first["create_time"]


def test_publishing_says_it_to_people_too(
    cloud: Cloud, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--gateway", cloud.gateway, "--tenant", cloud.tenant]
    flags += ["--api-key-file", str(cloud.home / "api.key"), "task", "publish", folder]
    flags += ["--keys", str(cloud.home / "keys")]
    assert main([*flags, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "checked" in shown
    assert "published  " not in shown
    assert main(flags) == 0
    assert "there already" not in capsys.readouterr().out
    assert main(flags) == 0
    assert "it was there already, nothing changed" in capsys.readouterr().out


def test_signatures_are_added_or_it_says_that_they_are_not(cloud: Cloud, folder: str) -> None:
    publish(cloud, folder)
    other = cloud.home / "other.key"
    signer = SigningKey.load_or_create(other)
    with pytest.raises(CommandFailed) as refused:
        publish(cloud, folder, "--key", str(other))
    assert refused.value.error["reason"] == "SIGNATURES_NOT_ADDED"
    assert signer.key_id in refused.value.error["message"]
    cloud.isthmus("trust", "rotate", "author", "--keys", str(cloud.home / "keys"), "--add", str(other))
    added = publish(cloud, folder, "--key", str(other))
    assert added["outcome"] == "signatures_added"
    assert signer.key_id in [each["key_id"] for each in added["manifest"]["signatures"]]


def test_a_version_is_shown_with_its_manifest(cloud: Cloud, folder: str) -> None:
    publish(cloud, folder)
    new_version(folder, "2.0.0")
    publish(cloud, folder)
    (newest,) = cloud.isthmus("task", "get", "clicks")
    (first,) = cloud.isthmus("task", "get", "clicks@1.0.0")
    assert (newest["task_manifest"]["version"], first["task_manifest"]["version"]) == ("2.0.0", "1.0.0")
    assert first["task_manifest"]["phases"][0]["script"]["size_bytes"] > 100
    for misspelt in ("click", "click@1.0.0"):
        with pytest.raises(CommandFailed) as unknown:
            cloud.isthmus("task", "get", misspelt)
        assert unknown.value.status == 4
        assert "did you mean 'clicks'?" in unknown.value.error["message"]


def test_retiring_a_key_names_the_releases_it_would_orphan(cloud: Cloud, folder: str) -> None:
    keys = ["--keys", str(cloud.home / "keys")]
    old = SigningKey.load(cloud.home / "keys" / "author.key")
    publish(cloud, folder)
    (release,) = cloud.isthmus("release", "create", "clicks@1.0.0")
    cloud.isthmus("trust", "rotate", "author", *keys, "--add", str(cloud.home / "new.key"))
    retire = ["trust", "rotate", "author", *keys, "--retire", old.key_id]
    with pytest.raises(CommandFailed) as refused:
        cloud.isthmus(*retire)
    assert refused.value.error["reason"] == "VERSIONS_ORPHANED"
    assert refused.value.error["metadata"] == {"releases": release["name"]}
    (root,) = cloud.isthmus("trust", "show")
    assert root["version"] == 2
    (root,) = cloud.isthmus(*retire, "--yes")
    assert root["version"] == 3
    orphan = {"release": release["name"], "version": "clicks@1.0.0"}
    assert root["unverifiable_releases"] == [orphan]


def test_retiring_a_key_is_quiet_where_another_signed_too(cloud: Cloud, folder: str) -> None:
    keys = ["--keys", str(cloud.home / "keys")]
    old = SigningKey.load(cloud.home / "keys" / "author.key")
    new = str(cloud.home / "new.key")
    cloud.isthmus("trust", "rotate", "author", *keys, "--add", new)
    publish(cloud, folder, "--key", new)
    cloud.isthmus("release", "create", "clicks@1.0.0")
    (root,) = cloud.isthmus("trust", "rotate", "author", *keys, "--retire", old.key_id)
    assert root["version"] == 3
    assert "unverifiable_releases" not in root


def test_an_expired_key_is_listed_as_such(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.isthmus("key", "create", "--scope", "tasks:read", "--ttl", "1ms")
    flags = ["--gateway", cloud.gateway, "--tenant", cloud.tenant]
    flags += ["--api-key-file", str(cloud.home / "api.key")]

    def listed() -> str:
        assert main([*flags, "key", "list"]) == 0
        return capsys.readouterr().out

    until("the key to expire", lambda: "expired" in listed())


def test_status_with_a_malformed_key_says_so(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("isk_short\n")
    assert main(["--gateway", stack.gateway, "--api-key-file", str(tmp_path / "key"), "status"]) == 3
    assert "malformed API key" in capsys.readouterr().err


def test_a_release_tried_dry_reads_like_one(
    cloud: Cloud, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(cloud, folder)
    flags = ["--gateway", cloud.gateway, "--tenant", cloud.tenant]
    flags += ["--api-key-file", str(cloud.home / "api.key"), "release"]

    def labels(*command: str) -> list[str]:
        assert main([*flags, *command]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.split("  ")[0].strip() for line in lines if not line.startswith("  ")]

    dry = labels("create", "clicks@1.0.0", "--steps", "10%,100%", "--dry-run")
    real = labels("create", "clicks@1.0.0", "--steps", "10%,100%")
    assert dry == [label if label != "step" else "steps" for label in real if label in {*dry, "step"}]
    (checked,) = cloud.isthmus("release", "create", "clicks@1.0.0", "--dry-run")
    assert checked["outcome"] == "checked"
    assert len(cloud.isthmus("release", "list")[0]) == 1
