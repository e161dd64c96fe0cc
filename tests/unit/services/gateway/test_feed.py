import pytest

from isthmus.deployer.v1 import push_index_pb2
from services.gateway.domain.push_index import Change
from services.gateway.feed import to_changes

DEVICE = "tenants/default/devices/d"


def test_changes_are_converted_one_by_one():
    response = push_index_pb2.WatchResponse(
        changes=[
            push_index_pb2.DeviceChange(device=DEVICE, wanted_digest=b"n" * 16),
            push_index_pb2.DeviceChange(device=DEVICE),
            push_index_pb2.DeviceChange(device=DEVICE, revoked=True),
        ]
    )
    assert to_changes(response) == [
        Change(DEVICE, b"n" * 16),
        Change(DEVICE, None),
        Change(DEVICE, None, revoked=True),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        push_index_pb2.DeviceChange(device="d", wanted_digest=b"n" * 16),
        push_index_pb2.DeviceChange(device=DEVICE, wanted_digest=b"short"),
        push_index_pb2.DeviceChange(),
    ],
    ids=["name", "digest", "empty"],
)
def test_one_that_cannot_be_right_spoils_no_other(wrong, caplog):
    good = push_index_pb2.DeviceChange(device=DEVICE, wanted_digest=b"n" * 16)
    assert to_changes(push_index_pb2.WatchResponse(changes=[wrong, good])) == [Change(DEVICE, b"n" * 16)]
    assert "ignored" in caplog.text
