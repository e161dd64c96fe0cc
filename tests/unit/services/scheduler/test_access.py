"""Every method has a rule, and only runners may use theirs."""

from isthmus.scheduler.v1 import runner_pb2, scheduler_pb2
from services.scheduler.access import ACCESS


def methods() -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for file in (scheduler_pb2.DESCRIPTOR, runner_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    }


def test_every_method_has_a_rule() -> None:
    assert set(ACCESS) == methods()


def test_runners_methods_are_for_runners_alone() -> None:
    for path, access in ACCESS.items():
        if "/isthmus.scheduler.v1.RunnerService/" in path:
            assert access.callers == {"scheduler-runner"}
            assert not access.kinds
        else:
            assert not access.callers
            assert access.kinds == {"user"}
            assert access.scope
        assert not access.public


def test_writes_take_a_writing_scope() -> None:
    for path, access in ACCESS.items():
        verb = path.rpartition("/")[2]
        if access.scope:
            writes = verb.startswith(("Create", "Update", "Delete", "Cancel"))
            assert access.scope.endswith(":write" if writes else ":read"), path
