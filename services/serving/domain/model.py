"""Models, versions and how they are served."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from datetime import datetime

from libs.common.blobs import BlobRef
from libs.common.errors import Invalid


class Platform(enum.Enum):
    """What a version's file is."""

    ONNX = "onnx"
    PLAN = "plan"


class State(enum.Enum):
    """How a version is."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """How a model is served; see the proto. Times in seconds."""

    max_batch_rows: int = 64
    max_batch_delay_s: float = 0.0
    instance_count: int = 1
    intra_op_thread_count: int = 1
    queue_capacity: int = 1024
    queue_timeout_s: float = 10.0
    kept_version_count: int = 1

    def __post_init__(self) -> None:
        """Raise Invalid, naming the field, for a value out of its range."""
        for field in fields(self):
            low, high = _LIMITS[field.name]
            value = getattr(self, field.name)
            if not low <= value <= high:
                shown = field.name.removesuffix("_s")
                unit = " s" if field.name.endswith("_s") else ""
                raise Invalid(
                    f"config.{shown}: {value:g}{unit} is out of range; use {low:g} to {high:g}{unit}",
                    reason="OUT_OF_BOUNDS",
                    metadata={"field": f"config.{shown}"},
                )


_LIMITS: dict[str, tuple[float, float]] = {
    "max_batch_rows": (1, 4096),
    "max_batch_delay_s": (0, 10),
    "instance_count": (1, 64),
    "intra_op_thread_count": (1, 64),
    "queue_capacity": (1, 65536),
    "queue_timeout_s": (0.001, 3600),
    "kept_version_count": (0, 16),
}


@dataclass(frozen=True, slots=True, order=True)
class ModelKey:
    """Whose model, and its id."""

    tenant: str
    model: str

    def __str__(self) -> str:
        return f"tenants/{self.tenant}/models/{self.model}"


@dataclass(frozen=True, slots=True)
class Model:
    """A model endpoint as it is stored.

    Attributes:
        live: the version that takes requests which name none; "" while there is none.
        unloaded: whether somebody unloaded it.
        revision: grows with each write; its text is the etag.
    """

    key: ModelKey
    config: ServingConfig
    create_time: datetime
    live: str = ""
    unloaded: bool = False
    revision: int = 1

    @property
    def etag(self) -> str:
        """What changes with each write."""
        return str(self.revision)


@dataclass(frozen=True, slots=True)
class Version:
    """A version as it is stored.

    Attributes:
        sequence: grows with each version of the store: newer is larger. 0 before it is stored.
        committed: False while it is being made or removed; what is found so at the start is cleared away.
    """

    key: ModelKey
    version: str
    platform: Platform
    blob: BlobRef
    create_time: datetime
    request_id: str = ""
    sequence: int = 0
    committed: bool = False

    def __str__(self) -> str:
        return f"{self.key}/versions/{self.version}"


@dataclass(frozen=True, slots=True)
class Condition:
    """How a version is, with a text for people."""

    state: State
    message: str = ""


def wanted_versions(model: Model, versions: list[Version]) -> list[Version]:
    """Return the versions to keep loaded, the live one first, then the next older ones."""
    live = next((version for version in versions if version.version == model.live), None)
    if live is None or model.unloaded:
        return []
    older = [each for each in versions if each.committed and each.sequence < live.sequence]
    older.sort(key=lambda each: -each.sequence)
    return [live, *older[: model.config.kept_version_count]]
