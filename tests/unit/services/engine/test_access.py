from google.protobuf import descriptor_pool

import services.engine.service  # noqa: F401 - registers the descriptors
from libs.common.access import SCOPES
from services.engine.access import ACCESS


def test_every_method_says_who_may_call_it() -> None:
    file = descriptor_pool.Default().FindFileByName("isthmus/engine/v1/engine.proto")
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == set(ACCESS)


def test_users_alone_may_call_and_need_a_scope_that_exists() -> None:
    for name, access in ACCESS.items():
        assert access.scope in SCOPES, name
        assert access.kinds == {"user"}, name
        assert not access.public, name
        assert not access.callers, name
