"""Makes plans: from the cache where it can, in a worker where it must, never the same one twice at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from libs.common.blobs import BlobRef
from libs.common.errors import Internal, Invalid
from libs.common.names import shown
from libs.common.sizes import size_text
from libs.runtime.check import check_plan
from libs.runtime.codec import decode
from services.engine.domain.budget import Budget
from services.engine.domain.explain import explain
from services.engine.domain.explanation import Explanation, Origins
from services.engine.domain.limits import MAX_MODEL_BYTES, MAX_PLAN_BYTES
from services.engine.domain.model import Made, Model, Stage, Verdict
from services.engine.domain.turns import Turns

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Blobs(Protocol):
    """The tenants' files. Methods raise NotFound for what the tenant doesn't have."""

    async def check(self, tenant: str, ref: BlobRef) -> None:
        """Return if the tenant has the blob, of that size."""
        ...

    async def read(self, tenant: str, ref: BlobRef, max_bytes: int) -> bytes:
        """Return a blob's content."""
        ...

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """Put a blob's content into a new file."""
        ...

    async def upload(self, tenant: str, content: bytes) -> BlobRef:
        """Give the tenant a blob."""
        ...


class Cache(Protocol):
    """Plans that were made and compared, by key. Losing one costs time only."""

    async def get(self, key: str) -> Made | None:
        """Return what was kept under a key, whole and unchanged, if anything is."""
        ...

    async def put(self, key: str, made: Made) -> None:
        """Keep something; what hasn't been used for longest gives way."""
        ...


class Crew(Protocol):
    """Makes plans out of process; see `services.engine.crew`."""

    def place(self) -> AbstractAsyncContextManager[Path]:
        """Give a folder for one job, as soon as there is room; raises Exhausted."""
        ...

    def make(
        self,
        folder: Path,
        dimensions: Mapping[str, tuple[int, int]],
        *,
        verify: bool,
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> AsyncGenerator[Stage | Made, None]:
        """Work on `folder`/model.onnx and its data in `folder`/data: yield stages, then what was made.

        Figures of what was decomposed are those at `sizes`.
        """
        ...


class Meter(Protocol):
    """What the operator is told."""

    def stage(self, stage: Stage) -> None:
        """Count a stage that has ended."""
        ...

    def cached(self, hit: bool) -> None:
        """Count a question to the cache."""
        ...


@dataclass(frozen=True, slots=True)
class Optimised:
    """A plan of a model."""

    plan: BlobRef
    explanation: Explanation
    verdict: Verdict
    cached: bool


class Optimiser:
    """See the module. `producer` is whom plans name as their maker: another one makes other plans.

    `budget` bounds the plans that calls hold. A plan from the cache counts as its model, which is about as
    large; those that are being made are bounded by the crew.
    """

    def __init__(
        self, blobs: Blobs, cache: Cache, crew: Crew, meter: Meter, budget: Budget, producer: str
    ) -> None:
        self._blobs = blobs
        self._cache = cache
        self._crew = crew
        self._meter = meter
        self._budget = budget
        self._producer = producer
        self._turns = Turns()

    async def optimise(
        self,
        tenant: str,
        model: Model,
        dimensions: Mapping[str, tuple[int, int]],
        *,
        validate_only: bool,
    ) -> AsyncGenerator[Stage | Optimised, None]:
        """Yield each stage that ends, then the plan, which is then a blob unless `validate_only`.

        The stages of a plan from the cache aren't told again. A plan is uploaded whole, or not at all.

        Raises:
            NotFound: when the tenant has no such model.
            Invalid, Precondition: as `Crew.make` does.
            Exhausted: when too many models are being worked on, or too large plans held.
        """
        _check_size(model)
        await self._check(tenant, model)
        key = self._key(model, dimensions)
        with contextlib.ExitStack() as holding:
            # Whoever waits for its turn finds the first one's plan in the cache.
            async with self._turns.alone(key):
                holding.enter_context(self._budget.hold(model.size_bytes))
                made = await self._cache.get(key)
                cached = made is not None
                self._meter.cached(cached)
                if made is None:
                    holding.close()
                    events = self._make(tenant, model, dimensions, verify=True)
                    async with contextlib.aclosing(events):
                        async for event in events:
                            if isinstance(event, Made):
                                made = event
                            else:
                                yield event
                    if made is None or made.verdict is None:
                        raise Internal("a worker made nothing, or didn't compare it")
                # A worker isn't trusted: what it made is read and checked here before it is kept.
                explanation = await asyncio.to_thread(explain_bytes, made.plan, made.origins)
                if not cached:
                    await self._cache.put(key, made)
            if made.verdict is None:
                raise Internal("a plan of the cache wasn't compared")
            if validate_only:
                ref = BlobRef.of(made.plan)
            else:
                ref = await self._blobs.upload(tenant, made.plan)
        yield Optimised(ref, explanation, made.verdict, cached)

    async def explain(
        self,
        tenant: str,
        model: Model | None,
        plan: BlobRef | None,
        dimensions: Mapping[str, tuple[int, int]],
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> Explanation:
        """Return what a plan, or that of a model, is made of; a model's isn't compared with ONNX Runtime.

        Figures are those at `sizes` of dimensions, which are the smallest for others.

        Raises what `optimise` does, but for PLAN_DISAGREES; and Invalid for what is no sound plan.
        """
        if plan is not None:
            await self._blobs.check(tenant, plan)
            # It is there twice: as bytes, and as what is read of them.
            with self._budget.hold(2 * plan.size_bytes):
                content = await self._blobs.read(tenant, plan, MAX_PLAN_BYTES)
                return await asyncio.to_thread(explain_bytes, content, None, sizes)
        if model is None:
            raise Internal("neither a model nor a plan is to be explained")
        _check_size(model)
        await self._check(tenant, model)
        made: Made | None = None
        if not sizes:
            # What is kept of a model before merging is for the smallest sizes.
            with self._budget.hold(model.size_bytes):
                made = await self._cache.get(self._key(model, dimensions))
                if made is not None:
                    return await asyncio.to_thread(explain_bytes, made.plan, made.origins)
        making = self._make(tenant, model, dimensions, verify=False, sizes=sizes)
        async with contextlib.aclosing(making) as events:
            async for event in events:
                made = event if isinstance(event, Made) else made
        if made is None:
            raise Internal("a worker made nothing")
        return await asyncio.to_thread(explain_bytes, made.plan, made.origins, sizes)

    async def _check(self, tenant: str, model: Model) -> None:
        await self._blobs.check(tenant, model.file)
        for ref in sorted(set(model.data.values()), key=lambda ref: ref.digest):
            await self._blobs.check(tenant, ref)

    async def _make(
        self,
        tenant: str,
        model: Model,
        dimensions: Mapping[str, tuple[int, int]],
        *,
        verify: bool,
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> AsyncGenerator[Stage | Made, None]:
        async with self._crew.place() as folder:
            await self._blobs.download(tenant, model.file, folder / "model.onnx")
            for path, ref in model.data.items():
                place = folder / "data" / path
                await asyncio.to_thread(_make_room, place, path)
                await self._blobs.download(tenant, ref, place)
            making = self._crew.make(folder, dimensions, verify=verify, sizes=sizes)
            async with contextlib.aclosing(making) as events:
                async for event in events:
                    if isinstance(event, Stage):
                        self._meter.stage(event)
                    yield event

    def _key(self, model: Model, dimensions: Mapping[str, tuple[int, int]]) -> str:
        data = sorted((path, ref.digest) for path, ref in model.data.items())
        text = json.dumps([model.file.digest, data, sorted(dimensions.items()), self._producer])
        return hashlib.sha256(text.encode()).hexdigest()


def explain_bytes(
    content: bytes, origins: Origins | None = None, sizes: Mapping[str, int] = _NO_SIZES
) -> Explanation:
    """Read, check and explain a plan; raises Invalid for what is no sound plan, or not made for the sizes."""
    plan = decode(content)
    check_plan(plan)
    return explain(plan, origins, sizes)


def _check_size(model: Model) -> None:
    if not model.file.size_bytes > 0 or model.size_bytes > MAX_MODEL_BYTES:
        what = f"with its data {size_text(model.size_bytes)}" if model.data else size_text(model.size_bytes)
        raise Invalid(
            f"model.size_bytes: has {what}; 1 byte to {size_text(MAX_MODEL_BYTES)} are allowed",
            reason="MODEL_TOO_LARGE",
            metadata={"field": "model.size_bytes"},
        )


def _make_room(place: Path, path: str) -> None:
    """Make the folders that a file goes into; raises Invalid where another file is in the way."""
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise Invalid(
            f"external_data: {shown(path)} lies in what is a file itself, or its name is too long",
            reason="BAD_PATH",
            metadata={"field": "external_data"},
        ) from None
