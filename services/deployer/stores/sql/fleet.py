"""Enrolment tokens and devices in SQL."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select

from libs.common.errors import Conflict
from libs.common.names import DeviceName
from services.deployer.domain.model import Device, EnrolmentToken, FleetRow
from services.deployer.stores.sql.base import Part, dump, micros, moment
from services.deployer.stores.sql.schema import devices, tokens

_FLEET = select(devices.c.device, devices.c.attributes, devices.c.reported, devices.c.revoked)


class FleetPart(Part):
    """See `services.deployer.store.Tx`."""

    def add_token(self, token: EnrolmentToken) -> None:
        """See `Tx`."""
        values = {
            "token_hash": token.token_hash,
            "tenant": token.tenant,
            "attributes": dump(dict(token.attributes)),
            "expire_time": micros(token.expire_time),
            "uses_left": token.uses_left,
        }
        self._insert(tokens, values, "token")

    def get_token(self, token_hash: bytes) -> EnrolmentToken | None:
        """See `Tx`."""
        row = self._c.execute(select(tokens).where(tokens.c.token_hash == token_hash)).first()
        if row is None:
            return None
        return EnrolmentToken(
            row.token_hash, row.tenant, json.loads(row.attributes), moment(row.expire_time), row.uses_left
        )

    def use_token(self, token_hash: bytes) -> bool:
        """See `Tx`."""
        left = tokens.c.uses_left
        taken = self._c.execute(
            tokens.update().where(tokens.c.token_hash == token_hash, left > 0).values(uses_left=left - 1)
        )
        return taken.rowcount == 1

    def add_device(self, device: Device) -> None:
        """See `Tx`."""
        values = {
            "tenant": device.name.tenant,
            "device": device.name.device,
            "public_key": device.public_key,
            "attributes": dump(dict(device.attributes)),
            "create_time": micros(device.create_time),
            "last_seen_time": micros(device.last_seen_time),
            "reported": dump(device.reported),
            "revoked": device.revoked,
            "revision": device.revision,
            "set_counter": device.set_counter,
            "set_digest": device.set_digest,
        }
        self._insert(devices, values, device.name)
        self._bump("fleet", device.name.tenant)

    def get_device(self, name: DeviceName) -> Device | None:
        """See `Tx`."""
        d = devices.c
        row = self._c.execute(select(devices).where(d.tenant == name.tenant, d.device == name.device)).first()
        return None if row is None else _device(row)

    def update_device(self, device: Device) -> None:
        """See `Tx`."""
        d, name = devices.c, device.name
        changed = self._c.execute(
            devices.update()
            .where(d.tenant == name.tenant, d.device == name.device, d.revision == device.revision - 1)
            .values(
                attributes=dump(dict(device.attributes)), revoked=device.revoked, revision=device.revision
            )
        )
        if changed.rowcount != 1:
            raise Conflict(f"{name}: was changed meanwhile; read it again", reason="STALE_ETAG")
        self._bump("fleet", name.tenant)

    def touch_device(self, device: Device) -> None:
        """See `Tx`."""
        d, name = devices.c, device.name
        self._c.execute(
            devices.update()
            .where(d.tenant == name.tenant, d.device == name.device)
            .values(
                reported=dump(device.reported),
                last_seen_time=micros(device.last_seen_time),
                set_counter=device.set_counter,
                set_digest=device.set_digest,
            )
        )

    def list_devices(self, tenant: str, after: str, limit: int) -> Sequence[Device]:
        """See `Tx`."""
        query = select(devices).where(devices.c.tenant == tenant, devices.c.device > after)
        return [_device(row) for row in self._c.execute(query.order_by(devices.c.device).limit(limit))]

    def scan_fleet(self, tenant: str, after: str, limit: int) -> Sequence[FleetRow]:
        """See `Tx`."""
        query = _FLEET.where(devices.c.tenant == tenant, devices.c.device > after)
        rows = self._c.execute(query.order_by(devices.c.device).limit(limit))
        return [
            FleetRow(device, attributes, _entries(reported), revoked)
            for device, attributes, reported, revoked in rows
        ]

    def fleet_revision(self, tenant: str) -> int:
        """See `Tx`."""
        return self._revision("fleet", tenant)

    def fleet_tenants(self) -> Sequence[str]:
        """See `Tx`."""
        return list(self._c.scalars(select(devices.c.tenant).distinct().order_by(devices.c.tenant)))


def _entries(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(json.loads(text))


def _device(row: Row[Any]) -> Device:
    return Device(
        name=DeviceName(row.tenant, row.device),
        public_key=row.public_key,
        attributes=json.loads(row.attributes),
        create_time=moment(row.create_time),
        last_seen_time=moment(row.last_seen_time),
        reported=_entries(row.reported),
        revoked=row.revoked,
        revision=row.revision,
        set_counter=row.set_counter,
        set_digest=row.set_digest,
    )
