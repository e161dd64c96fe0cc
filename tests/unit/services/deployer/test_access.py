from google.protobuf import descriptor_pool

import services.deployer.service
import services.deployer.service_devices  # noqa: F401 - registers the descriptors
from libs.common.access import SCOPES
from services.deployer.access import ACCESS

PACKAGE = "isthmus.deployer.v1"
FILES = ("audit", "blob", "device", "pull", "push_index", "release", "task", "trust_service")


def methods() -> set[str]:
    pool = descriptor_pool.Default()
    files = [pool.FindFileByName(f"isthmus/deployer/v1/{name}.proto") for name in FILES]
    return {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


def test_every_method_says_who_may_call_it() -> None:
    assert methods() == set(ACCESS)


def test_only_enrolment_is_public_and_every_scope_is_known() -> None:
    assert [name for name, access in ACCESS.items() if access.public] == [
        f"/{PACKAGE}.EnrolmentService/Enrol"
    ]
    for name, access in ACCESS.items():
        if "user" in access.kinds and not access.public:
            assert access.scope in SCOPES, name


def test_services_that_keep_files_for_tenants_may_use_blobs_and_nobody_else_pins() -> None:
    keepers = {"engine", "scheduler-runner", "serving"}
    readers, unpinners = keepers | {"tuner", "simulator"}, keepers | {"scheduler"}
    for name, access in ACCESS.items():
        if name.startswith(f"/{PACKAGE}.BlobService/"):
            method = name.rpartition("/")[2]
            allowed = {"StatBlob": readers, "ReadBlob": readers, "UnpinBlobs": unpinners}.get(method, keepers)
            assert access.callers == allowed, name
        else:
            assert not access.callers & unpinners, name
    for method in ("PinBlob", "UnpinBlobs"):
        assert ACCESS[f"/{PACKAGE}.BlobService/{method}"].kinds == frozenset()


def test_only_gateways_may_follow_the_push_index() -> None:
    watch = ACCESS[f"/{PACKAGE}.PushIndexService/Watch"]
    assert (watch.kinds, watch.callers) == (frozenset(), frozenset({"gateway"}))
