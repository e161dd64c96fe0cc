"""Becoming a known device, and staying one."""

import asyncio
import logging
import sqlite3
from pathlib import Path

from isthmus.trust.v1 import trust_pb2
from libs.common.clock import Clock
from libs.common.errors import (
    AlreadyExists,
    Error,
    Forbidden,
    Invalid,
    NotFound,
    Precondition,
    Unauthenticated,
)
from libs.trust.root import verify_first_root
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud
from services.device_agent.config import AgentConfig
from services.device_agent.errors import EnrolmentRefused
from services.device_agent.identity import Credential
from services.device_agent.pulling import ROOT
from services.device_agent.signals import Problems
from services.device_agent.store import values
from services.device_agent.store.database import Database

_log = logging.getLogger("isthmus.agent")

CREDENTIAL = "credential"
_SUBJECT = "enrolment"
# What the cloud says about this device or its token, which won't change by itself. Anything else may be
# mended in the cloud: a tenant without a root yet, a service that is older than this agent, a fault.
_FOR_GOOD = (Invalid, Unauthenticated, Forbidden, AlreadyExists)
# A wait for the credential's half-life is looked at again after this long, since clocks may jump.
_LONGEST_WAIT_S = 3600.0


def require_key(connection: sqlite3.Connection, path: Path) -> None:
    """Raise Precondition when this device is enrolled and its key isn't there: another would be no use."""
    stored = values.get_blob(connection, CREDENTIAL)
    if stored is not None and not path.exists():
        device = Credential.from_json(stored).device
        raise Precondition(
            f"{path} is missing, the key that {device} is enrolled with; restore it, or move the state "
            "folder away and enrol anew under a new id",
            reason="DEVICE_KEY_MISSING",
        )


class Enroller:
    """Gets the credential, pins the root, renews the credential after half of its life.

    Attributes:
        enrolled: set once there is a credential.
    """

    def __init__(
        self,
        config: AgentConfig,
        database: Database,
        cloud: Cloud,
        clock: Clock,
        problems: Problems,
        backoff: Backoff,
    ) -> None:
        self.enrolled = asyncio.Event()
        self._config = config
        self._database = database
        self._cloud = cloud
        self._clock = clock
        self._problems = problems
        self._backoff = backoff

    async def start(self) -> None:
        """Take up what an earlier run has got.

        Raises:
            Invalid: when the configuration names another device than the state folder is of.
            EnrolmentRefused: when the device isn't enrolled and has nothing to enrol with.
        """
        stored = await self._database.run(lambda connection: values.get_blob(connection, CREDENTIAL))
        if stored is None:
            if not self._config.enrolment_token or not self._config.device_id:
                raise EnrolmentRefused(
                    "this device isn't enrolled yet: give --device-id and --enrolment-token "
                    "(isthmus device token makes one)",
                    reason="NOT_ENROLLED",
                )
            return
        credential = Credential.from_json(stored)
        if self._config.device_id not in ("", credential.name.device):
            raise Invalid(
                f"--device-id: the state folder is of device {credential.name.device!r}, not "
                f"{self._config.device_id!r}; give another --state-dir",
                reason="OTHER_DEVICE",
            )
        self._cloud.credential = credential
        self.enrolled.set()

    async def run(self) -> None:
        """Enrol, then renew, for ever.

        Raises:
            EnrolmentRefused: when the cloud refuses the token or the key for good.
        """
        if not self.enrolled.is_set():
            await self._enrol()
        refusals = 0
        while True:
            credential = self._cloud.credential
            assert credential is not None
            seen = self._cloud.refused.rings
            wait_s = min(credential.renew_s - self._cloud.clock.now_s(), _LONGEST_WAIT_S)
            if wait_s > 0 and await self._cloud.refused.wait_or_sleep(seen, self._clock, wait_s) == seen:
                refusals = 0
                continue
            if self._cloud.refused.rings != seen:
                # A new credential may help; where it doesn't, not every refusal shall ask for another.
                await self._clock.sleep(self._backoff.delay_s(refusals))
                refusals += 1
            await self._renew()

    async def _enrol(self) -> None:
        attempt = 0
        while not self.enrolled.is_set():
            try:
                await self._enrol_once()
            except Error as error:
                if isinstance(error, _FOR_GOOD):
                    raise EnrolmentRefused(
                        f"the cloud refuses to enrol {self._config.device_id!r}: {error.message}",
                        reason=error.reason,
                    ) from error
                self._problems.set(_SUBJECT, error.message, error.reason)
                await self._clock.sleep(self._backoff.delay_s(attempt, error))
                attempt += 1
        self._problems.clear(_SUBJECT)

    async def _enrol_once(self) -> None:
        config = self._config
        credential, root = await self._cloud.enrol(
            config.enrolment_token, config.device_id, config.attribute_map()
        )
        tenant = verify_first_root(root).tenant
        if (tenant, config.device_id) != (credential.name.tenant, credential.name.device):
            raise Invalid(
                f"the answer is for {credential.device} with a root of tenant {tenant!r}",
                reason="WRONG_DEVICE",
            )
        await self._keep(credential, root)
        _log.info("enrolled", extra={"device": credential.device})

    async def _renew(self) -> None:
        attempt = 0
        while True:
            failure: Error | None = None
            try:
                await self._keep(await self._cloud.renew(), None)
            except (Unauthenticated, NotFound) as error:
                # Expired while the device was away, revoked, or forgotten by a cloud that was restored: only
                # enrolling again can help, by the same id and key. What we have is kept whatever the answer.
                self._problems.set(_SUBJECT, error.message, error.reason)
                if self._config.enrolment_token and self._config.device_id:
                    try:
                        await self._enrol_once()
                    except Error as refused:
                        self._problems.set(_SUBJECT, refused.message, refused.reason)
                    else:
                        break
            except Error as error:
                failure = error
                self._problems.set(_SUBJECT, error.message, error.reason)
            else:
                break
            await self._clock.sleep(self._backoff.delay_s(attempt, failure))
            attempt += 1
        self._problems.clear(_SUBJECT)

    async def _keep(self, credential: Credential, root: trust_pb2.Signed | None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            values.set_blob(connection, CREDENTIAL, credential.to_json())
            # A root that is pinned already is only ever replaced by its successor.
            if root is not None and values.get_blob(connection, ROOT) is None:
                values.set_blob(connection, ROOT, root.SerializeToString())

        await self._database.run(work)
        self._cloud.credential = credential
        self.enrolled.set()
