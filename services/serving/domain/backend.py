"""What executes a model, as the domain sees it, and how a model is tried before it takes traffic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from libs.common.errors import Error, Precondition
from services.serving.domain.model import Platform, ServingConfig
from services.serving.domain.tensors import BYTES, DTYPES, Array, Signature

_log = logging.getLogger("isthmus.serving.backend")


class Backend(Protocol):
    """A loaded model. Thread-safe; what it holds is released with it."""

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        ...

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """Least and most of the dimensions that are bounded, by their text."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute every output; blocks.

        Raises:
            Invalid: for values or shapes that the model can't take.
            Exhausted: when memory doesn't suffice.
        """
        ...


class Loader(Protocol):
    """Makes backends."""

    def load(self, path: Path, platform: Platform, config: ServingConfig) -> Backend:
        """Load a file; blocks.

        Raises:
            Invalid: when the file is no such model, or needs what isn't supported.
            Exhausted: when memory doesn't suffice.
        """
        ...


def warm(backend: Backend) -> int:
    """Run a model on zeros, so that the first request finds it ready; blocks.

    Returns:
        The most rows in one execution: 1 where requests can't be put together (also found out by trying: two
        rows must give two), else the backend's bound, 2^31 where it has none.

    Raises:
        Precondition: when it fails, unless a dimension may have any size: sizes that it takes aren't known
            then.
    """
    signature = backend.signature
    rows = signature.rows
    try:
        backend.run(_zeros(backend, 1))
    except Error as error:
        if signature.free:
            _log.info("a model couldn't be warmed at the smallest sizes: %s", error.message)
            return _bound(backend, rows)
        raise Precondition(f"the model fails on zeros: {error.message}", reason="WARM_UP_FAILED") from error
    if rows is None or _bound(backend, rows) < 2:
        return 1
    try:
        outputs = backend.run(_zeros(backend, 2))
    except Error as error:
        _log.info("a model doesn't take two rows, so its requests aren't batched: %s", error.message)
        return 1
    if any(array.shape[:1] != (2,) for array in outputs.values()):
        _log.info("a model doesn't give a row for each, so its requests aren't batched")
        return 1
    return _bound(backend, rows)


def _bound(backend: Backend, rows: str | None) -> int:
    return 1 if rows is None else backend.sizes.get(rows, (1, 2**31))[1]


def _zeros(backend: Backend, rows: int) -> dict[str, Array]:
    """Return zeros of the smallest sizes, with so many rows where there are rows."""
    batched = backend.signature.rows is not None
    inputs: dict[str, Array] = {}
    for spec in backend.signature.inputs:
        shape = [
            dim if isinstance(dim, int) else max(1, backend.sizes.get(dim, (1, 1))[0]) for dim in spec.shape
        ]
        if batched:
            shape[0] = max(rows, shape[0])
        array = inputs[spec.name] = np.zeros(shape, DTYPES[spec.datatype])
        if spec.datatype == BYTES:
            array.fill(b"")
    return inputs
