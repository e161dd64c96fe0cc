"""Backends by platform."""

from __future__ import annotations

from pathlib import Path

from services.serving.backends.onnx_runtime import OnnxBackend
from services.serving.backends.plan import PlanBackend
from services.serving.domain.backend import Backend
from services.serving.domain.model import Platform, ServingConfig


class BackendLoader:
    """See `services.serving.domain.backend.Loader`."""

    def __init__(self, plan_memory_bytes: int) -> None:
        """Bound a plan's buffers to `plan_memory_bytes`."""
        self._plan_memory_bytes = plan_memory_bytes

    def load(self, path: Path, platform: Platform, config: ServingConfig) -> Backend:
        """See `Loader`."""
        if platform is Platform.ONNX:
            return OnnxBackend(path, config.instance_count, config.intra_op_thread_count)
        return PlanBackend(path, self._plan_memory_bytes)
