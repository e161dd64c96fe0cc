from google.protobuf import descriptor_pool

import services.serving.service
import services.serving.service_inference  # noqa: F401 - registers the descriptors
from libs.common.access import SCOPES
from services.serving.access import ACCESS

FILES = ("inference/open_inference.proto", "isthmus/serving/v1/model.proto")


def test_every_method_says_who_may_call_it() -> None:
    pool = descriptor_pool.Default()
    methods = {
        f"/{service.full_name}/{method.name}"
        for name in FILES
        for service in pool.FindFileByName(name).services_by_name.values()
        for method in service.methods
    }
    assert methods == set(ACCESS)


def test_only_what_tells_nothing_of_tenants_is_public() -> None:
    public = {name.rpartition("/")[2] for name, access in ACCESS.items() if access.public}
    assert public == {"ServerLive", "ServerReady", "ServerMetadata"}
    for name, access in ACCESS.items():
        assert access.public or access.scope in SCOPES, name
        assert access.kinds == frozenset({"user"}), name


def test_the_tunnel_may_infer_and_change_nothing() -> None:
    allowed = {name.rpartition("/")[2] for name, access in ACCESS.items() if "tunnel" in access.callers}
    assert allowed == {"ModelReady", "ModelMetadata", "ModelInfer", "ModelConfig"}
