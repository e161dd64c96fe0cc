"""Resource names: what things are called in every API, row and log line.

A name is its ids between fixed collection words, `tenants/{tenant}/tasks/{task}`. Whoever holds an instance
holds checked ids: building one with a malformed id raises Invalid, and so does parsing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from libs.common.errors import Invalid

# Quoted values in messages are cut here, so that a caller can't make us echo a megabyte.
_SHOWN = 80
_ID = re.compile(r"[a-z0-9-]{1,63}", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


def shown(value: str) -> str:
    """Return `value` quoted for a message, cut to 80 characters."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}… ({len(value)} characters)"


def check_id(value: str, field: str) -> str:
    """Return `value` if it is an id, `[a-z0-9-]{1,63}`; raise Invalid naming `field` otherwise."""
    if not _ID.fullmatch(value):
        raise Invalid(
            f"{field}: {shown(value)} is not an id; use 1 to 63 of a-z, 0-9 and '-'",
            reason="BAD_ID",
            metadata={"field": field},
        )
    return value


def check_version(value: str, field: str) -> str:
    """Return `value` if it is a version, `[A-Za-z0-9._-]{1,128}`; raise Invalid naming `field` otherwise.

    "." and ".." are refused as well: versions become file names.
    """
    if not _VERSION.fullmatch(value) or value in (".", ".."):
        raise Invalid(
            f"{field}: {shown(value)} is not a version; use 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'",
            reason="BAD_VERSION",
            metadata={"field": field},
        )
    return value


def check_model(value: str, field: str) -> str:
    """Return `value` if it is a model's id, `[A-Za-z0-9._-]{1,128}`; else raise Invalid naming `field`."""
    if not _VERSION.fullmatch(value) or value in (".", ".."):
        raise Invalid(
            f"{field}: {shown(value)} can't be the name of a model; use 1 to 128 of A-Z, a-z, 0-9, '.', '_' "
            "and '-'",
            reason="BAD_ID",
            metadata={"field": field},
        )
    return value


class _Name:
    """What all resource names share: `_parts` lists (collection, attribute) in order."""

    __slots__ = ()
    _parts: ClassVar[tuple[tuple[str, str], ...]] = ()

    @classmethod
    def format(cls) -> str:
        """Return the format for messages, such as `tenants/{tenant}/tasks/{task}`."""
        return "/".join(f"{collection}/{{{attribute}}}" for collection, attribute in cls._parts)

    @classmethod
    def parse(cls, text: str, field: str = "name") -> Self:
        """Return the name that `text` spells.

        Raises:
            Invalid: naming `field`, the value and the format.
        """
        words = text.split("/") if len(text) <= 1024 else []
        if len(words) != 2 * len(cls._parts) or any(
            word != collection for word, (collection, _) in zip(words[::2], cls._parts, strict=True)
        ):
            raise Invalid(
                f"{field}: {shown(text)} is not of the form '{cls.format()}'",
                reason="BAD_NAME",
                metadata={"field": field},
            )
        for word, (_, attribute) in zip(words[1::2], cls._parts, strict=True):
            _check(attribute)(word, field if field == attribute else f"{field}: {attribute}")
        return cls(*words[1::2])

    def __post_init__(self) -> None:
        for _, attribute in self._parts:
            _check(attribute)(getattr(self, attribute), attribute)

    def __str__(self) -> str:
        return "/".join(f"{collection}/{getattr(self, attribute)}" for collection, attribute in self._parts)


def _check(attribute: str) -> Callable[[str, str], str]:
    return {"model": check_model, "version": check_version}.get(attribute, check_id)


_TENANT = (("tenants", "tenant"),)


@dataclass(frozen=True, slots=True)
class TenantName(_Name):
    """`tenants/{tenant}`."""

    _parts = _TENANT
    tenant: str


@dataclass(frozen=True, slots=True)
class TaskName(_Name):
    """`tenants/{tenant}/tasks/{task}`."""

    _parts = (*_TENANT, ("tasks", "task"))
    tenant: str
    task: str


@dataclass(frozen=True, slots=True)
class VersionName(_Name):
    """`tenants/{tenant}/tasks/{task}/versions/{version}`."""

    _parts = (*_TENANT, ("tasks", "task"), ("versions", "version"))
    tenant: str
    task: str
    version: str

    @property
    def parent(self) -> TaskName:
        """The task that this is a version of."""
        return TaskName(self.tenant, self.task)


@dataclass(frozen=True, slots=True)
class ReleaseName(_Name):
    """`tenants/{tenant}/releases/{release}`."""

    _parts = (*_TENANT, ("releases", "release"))
    tenant: str
    release: str


@dataclass(frozen=True, slots=True)
class DeviceName(_Name):
    """`tenants/{tenant}/devices/{device}`."""

    _parts = (*_TENANT, ("devices", "device"))
    tenant: str
    device: str


@dataclass(frozen=True, slots=True)
class KeyName(_Name):
    """`tenants/{tenant}/keys/{key}`."""

    _parts = (*_TENANT, ("keys", "key"))
    tenant: str
    key: str


@dataclass(frozen=True, slots=True)
class NodeName(_Name):
    """`nodes/{node}`."""

    _parts = (("nodes", "node"),)
    node: str


@dataclass(frozen=True, slots=True)
class QueueName(_Name):
    """`tenants/{tenant}/queues/{queue}`."""

    _parts = (*_TENANT, ("queues", "queue"))
    tenant: str
    queue: str


@dataclass(frozen=True, slots=True)
class JobName(_Name):
    """`tenants/{tenant}/jobs/{job}`."""

    _parts = (*_TENANT, ("jobs", "job"))
    tenant: str
    job: str


@dataclass(frozen=True, slots=True)
class ReservationName(_Name):
    """`tenants/{tenant}/reservations/{reservation}`."""

    _parts = (*_TENANT, ("reservations", "reservation"))
    tenant: str
    reservation: str


@dataclass(frozen=True, slots=True)
class ModelName(_Name):
    """`tenants/{tenant}/models/{model}`."""

    _parts = (*_TENANT, ("models", "model"))
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class ModelVersionName(_Name):
    """`tenants/{tenant}/models/{model}/versions/{version}`."""

    _parts = (*_TENANT, ("models", "model"), ("versions", "version"))
    tenant: str
    model: str
    version: str

    @property
    def parent(self) -> ModelName:
        """The model that this is a version of."""
        return ModelName(self.tenant, self.model)


@dataclass(frozen=True, slots=True)
class ExperimentName(_Name):
    """`tenants/{tenant}/experiments/{experiment}`."""

    _parts = (*_TENANT, ("experiments", "experiment"))
    tenant: str
    experiment: str
