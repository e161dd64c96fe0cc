"""Numbers that no message can hold are refused where they are typed."""

from collections.abc import Iterator

import click
import pytest

from libs.cli.groups import agent, endpoint, job, queue, release, task, tune

GROUPS = (agent.agent, endpoint.endpoint, job.job, queue.queue, release.release, task.task, tune.tune)


def ranges(command: click.Command, path: str) -> Iterator[tuple[str, click.IntRange]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from ranges(child, f"{path} {name}")
    for parameter in command.params:
        # It bounds what is shown, and is never sent.
        if isinstance(parameter.type, click.IntRange) and parameter.name != "limit":
            yield f"{path} --{parameter.name}", parameter.type


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_number_has_a_largest(group: click.Group) -> None:
    found = list(ranges(group, group.name or ""))
    assert [name for name, kind in found if kind.max is None] == []
