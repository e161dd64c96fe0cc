"""Keeps the push index up to date from the deployer's feed; the gateway serves on while the feed is away."""

import asyncio
import logging
from collections.abc import Iterable

import grpc
import grpc.aio

from isthmus.deployer.v1 import push_index_pb2, push_index_pb2_grpc
from libs.common.clock import Clock
from libs.common.errors import Invalid
from libs.common.identity import IDENTITY_HEADER, IdentityIssuer
from libs.common.names import DeviceName
from libs.common.rand import Randomness
from libs.task.profile import DIGEST_BYTES
from services.gateway.domain.push import PushState
from services.gateway.domain.push_index import Change, PushIndex

_log = logging.getLogger(__name__)
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 10.0
# Changes applied in one go before other tasks get their turn: a few milliseconds' worth.
_SLICE = 1000


def to_changes(response: push_index_pb2.WatchResponse) -> list[Change]:
    """Return the changes in a message of the feed; one that can't be right is logged and left out."""
    changes = []
    for change in response.changes:
        try:
            DeviceName.parse(change.device)
            if len(change.wanted_digest) not in (0, DIGEST_BYTES):
                raise Invalid(f"wanted_digest has {len(change.wanted_digest)} bytes, not {DIGEST_BYTES}")
        except Invalid as error:
            _log.warning("change in the push index feed ignored: %s", error)
            continue
        changes.append(Change(change.device, change.wanted_digest or None, change.revoked))
    return changes


class Feed:
    """Follows `PushIndexService.Watch`: a snapshot first, then changes; resumes by revision after a break."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        audience: str,
        issuer: IdentityIssuer,
        push: PushState,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._channel = channel
        self._stub = push_index_pb2_grpc.PushIndexServiceStub(channel)
        self._audience = audience
        self._issuer = issuer
        self._push = push
        self._clock = clock
        self._randomness = randomness
        #: Whether the feed is up and the index is complete.
        self.current = False
        self._progress = False

    async def follow_for_ever(self) -> None:
        """Follow the feed; after a break wait with jitter and follow on."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._follow(self._push.index.revision)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.OUT_OF_RANGE and self._push.index.revision:
                    _log.info("push index feed: revision compacted, reading a snapshot")
                    self._push.index.revision = 0
                    continue
                _log.info("push index feed is away: %s", error.details(), extra={"code": error.code().name})
            except Exception:
                _log.exception("following the push index feed failed")
            self.current = False
            if self._progress:
                wait_s, self._progress = _FIRST_WAIT_S, False
            await self._clock.sleep(self._randomness.uniform(0, wait_s))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _follow(self, revision: int) -> None:
        await self._channel.channel_ready()
        token = self._issuer.mint_own(self._audience)
        call = self._stub.Watch(
            push_index_pb2.WatchRequest(revision=revision),
            metadata=((IDENTITY_HEADER, token),),
        )
        # A snapshot is read aside, so that the index in force stays whole until there is a better one.
        snapshot = self._push.new_index() if revision == 0 else None
        self.current = snapshot is None
        try:
            async for response in call:
                self._progress = True
                changes = to_changes(response)
                if snapshot is not None:
                    await self._read(snapshot, changes)
                    if response.revision:
                        snapshot.revision = response.revision
                        self._push.replace(snapshot)
                        snapshot = None
                        self.current = True
                    continue
                await self._apply(changes)
                self._push.index.revision = response.revision
        finally:
            call.cancel()

    async def _read(self, snapshot: PushIndex, changes: list[Change]) -> None:
        for part in _slices(changes):
            for change in part:
                snapshot.apply(change)
            await asyncio.sleep(0)

    async def _apply(self, changes: list[Change]) -> None:
        for part in _slices(changes):
            self._push.apply(part)
            await asyncio.sleep(0)


def _slices(changes: list[Change]) -> Iterable[list[Change]]:
    return (changes[start : start + _SLICE] for start in range(0, len(changes), _SLICE))
