"""Inference and what is asked about it, free of transport: repository → version → batcher → backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.common.errors import Exhausted, Invalid
from libs.common.shares import Shares
from services.serving.domain.batcher import Work
from services.serving.domain.deployment import Deployment, Fleet
from services.serving.domain.execution import Member
from services.serving.domain.model import Condition, ModelKey, State
from services.serving.domain.statistics import Statistics
from services.serving.domain.tensors import Tensor, check_inputs, check_outputs


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request of `size_bytes` as it came; see `Work` for its times."""

    key: ModelKey
    version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    size_bytes: int = 0
    deadline: float | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class InferResult:
    """An answer: the version that gave it, and the outputs asked for."""

    version: str
    outputs: tuple[Tensor, ...]


class DataPlane:
    """Answers for the versions of a fleet."""

    def __init__(self, fleet: Fleet, max_held_bytes: int) -> None:
        """Bound the bytes of all requests in hand to `max_held_bytes`, shared out among tenants."""
        self._fleet = fleet
        self._held = Shares(max_held_bytes)

    @property
    def ready(self) -> bool:
        """Whether every model that should be loaded was tried."""
        return self._fleet.ready

    @property
    def held_bytes(self) -> int:
        """Bytes of the requests in hand."""
        return self._held.held

    def model_ready(self, key: ModelKey, version: str) -> bool:
        """Tell whether a version answers requests."""
        endpoint = self._fleet.endpoints.get(key)
        return endpoint is not None and (version or endpoint.live) in endpoint.deployments

    def deployment(self, key: ModelKey, version: str) -> Deployment:
        """See `Fleet.deployment`."""
        return self._fleet.deployment(key, version)

    def loaded_versions(self, key: ModelKey) -> list[str]:
        """Return the versions of a model that answer requests."""
        return list(self._fleet.find(key).deployments)

    def statistics(self, tenant: str, model: str, version: str) -> list[tuple[str, str, Statistics]]:
        """Return (model, version, statistics) of a tenant; empty names take all.

        Raises:
            NotFound: when a model or version is named that isn't there.
        """
        if model:
            key = ModelKey(tenant, model)
            self._fleet.find(key)
            if version and version not in self._fleet.find(key).statistics:
                self._fleet.deployment(key, version)
        return [
            (key.model, name, statistics)
            for key, name, statistics in self._fleet.statistics()
            if key.tenant == tenant and model in ("", key.model) and version in ("", name)
        ]

    def index(self, tenant: str, ready_only: bool) -> list[tuple[str, str, Condition]]:
        """Return (model, version, how it is) of a tenant, by name."""
        return [
            (key.model, version, condition)
            for key, endpoint in sorted(self._fleet.endpoints.items(), key=lambda item: item[0])
            if key.tenant == tenant
            for version, condition in endpoint.conditions.items()
            if not ready_only or condition.state is State.READY
        ]

    async def infer(self, request: InferRequest) -> InferResult:
        """Run a model.

        Raises:
            NotFound, Unavailable: as `Fleet.deployment`; Unavailable as `Batcher.submit` too.
            Invalid: for inputs or outputs that don't fit the model.
            Exhausted: when requests hold too many bytes already.
        """
        deployment = self._fleet.deployment(request.key, request.version)
        signature = deployment.backend.signature
        inputs = check_inputs(signature, request.inputs)
        wanted = check_outputs(signature, request.outputs)
        rows = _rows(deployment, request.inputs)
        size = request.size_bytes
        if not self._held.take(request.key.tenant, size):
            raise Exhausted(
                f"requests hold {self._held.held_by(request.key.tenant)} bytes of this tenant's and "
                f"{self._held.held} in all; {size} more are too many, try again in a moment",
                reason="TOO_MANY_BYTES",
                retry_after_s=0.5,
            )
        try:
            # No await between the look-up above and this call: what is swapped out gets nothing more.
            outputs = await deployment.batcher.submit(
                Work(Member(inputs, rows), request.deadline, request.timeout_s)
            )
        finally:
            self._held.give_back(request.key.tenant, size)
        return InferResult(
            deployment.version,
            tuple(Tensor(spec.name, spec.datatype, outputs[spec.name]) for spec in wanted),
        )


def _rows(deployment: Deployment, inputs: Sequence[Tensor]) -> int:
    """Return the rows of a request; raise Invalid for too many, or inputs that differ in them."""
    if deployment.backend_rows == 1:
        return 1
    counts = {tensor.array.shape[0] for tensor in inputs}
    if len(counts) > 1:
        raise Invalid(
            f"inputs: they have {', '.join(map(str, sorted(counts)))} rows; give all the same number",
            reason="BAD_INPUT",
            metadata={"field": "inputs"},
        )
    rows = int(counts.pop())
    if rows < 1 or 1 < deployment.max_rows < rows:
        raise Invalid(
            f"inputs: {rows} rows; a request has 1 to {deployment.max_rows}: send several"
            " or raise max_batch_rows",
            reason="BAD_INPUT",
            metadata={"field": "inputs"},
        )
    # Where nothing is put together a request has as many rows as it likes: it counts as one, or statistics,
    # which are kept for each number of rows, would grow without bound.
    return rows if deployment.max_rows > 1 else 1
