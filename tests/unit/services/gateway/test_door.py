"""Which methods the door has."""

from typing import Any
from unittest.mock import Mock

import pytest

from services.gateway.descriptors import all_methods
from services.gateway.domain.routes import BEHIND_THE_DOOR
from services.gateway.door import Door
from services.gateway.sizes import Sizes

NAMES = ("deployer", "engine", "scheduler", "tunnel")


def door(*names: str) -> Door:
    made: Any = Mock()
    return Door(all_methods(), dict.fromkeys(names, made), made, Sizes(1024, 1024))


def services(*names: str) -> set[str]:
    return {method.service for method in door(*names).methods}


def test_every_service_of_an_upstream_can_be_called_through_the_door() -> None:
    assert services("engine") == {"isthmus.engine.v1.EngineService"}
    assert services("scheduler") == {
        f"isthmus.scheduler.v1.{name}Service" for name in ("Job", "Node", "Queue")
    }


def test_runners_have_no_way_through_the_door() -> None:
    named = {method.service for method in all_methods()}
    assert named >= BEHIND_THE_DOOR  # else this checks nothing
    assert services(*NAMES) & BEHIND_THE_DOOR == set()


@pytest.mark.parametrize("name", ["Attach", "AppendLog"])
def test_a_method_behind_the_door_has_no_handler(name: str) -> None:
    server = Mock()
    door(*NAMES).add_to(server)
    (table,) = server.add_generic_rpc_handlers.call_args.args[0]
    assert table.service(Mock(method=f"/isthmus.scheduler.v1.RunnerService/{name}")) is None
    assert table.service(Mock(method="/isthmus.scheduler.v1.JobService/GetJob")) is not None
