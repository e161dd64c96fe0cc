"""The tasks of the cloud for tests of the command: keeps what is published, tries nothing.

It is set by hand: `cloud.tasks.preflight` is the verdict that the next version gets.
"""

from __future__ import annotations

import hashlib
from typing import Any, NoReturn

import grpc

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2, task_pb2, task_pb2_grpc

Context = grpc.ServicerContext


class FakeTasks(task_pb2_grpc.TaskServiceServicer):
    """Tasks and versions, of one tenant.

    Attributes:
        versions: by name, the oldest first.
        published: every request to publish, in order.
        preflight: of the next version; None gives it none.
        refusal: what publishing is refused with, as a status' text; "" publishes.
        refused_with: the code of that status.
        waited_s: how long the last publisher would have waited, in seconds.
    """

    def __init__(self) -> None:
        self.versions: dict[str, task_pb2.Version] = {}
        self.published: list[task_pb2.PublishVersionRequest] = []
        self.preflight: preflight_pb2.Preflight | None = None
        self.refusal = ""
        self.refused_with = grpc.StatusCode.FAILED_PRECONDITION
        self.waited_s = 0.0
        self._tasks: set[str] = set()

    def add_to(self, server: grpc.Server) -> None:
        """Register with `server`."""
        task_pb2_grpc.add_TaskServiceServicer_to_server(self, server)

    def CreateTask(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        name = f"{request.parent}/tasks/{request.task_id}"
        self._tasks.add(name)
        return task_pb2.CreateTaskResponse(task=task_pb2.Task(name=name))

    def GetTask(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        if request.name not in self._tasks:
            _missing(context, request.name)
        return task_pb2.GetTaskResponse(task=task_pb2.Task(name=request.name))

    def ListTasks(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        found = sorted(name for name in self._tasks if name.startswith(f"{request.parent}/"))
        return task_pb2.ListTasksResponse(tasks=[task_pb2.Task(name=name) for name in found])

    def PublishVersion(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        self.published.append(request)
        self.waited_s = context.time_remaining()
        if self.refusal:
            context.abort(self.refused_with, self.refusal)
        manifest = manifest_pb2.TaskManifest.FromString(request.manifest.payload)
        name = f"{request.parent}/versions/{manifest.version}"
        version = self.versions.get(name) or task_pb2.Version(
            name=name,
            manifest=request.manifest,
            manifest_digest=f"sha256:{hashlib.sha256(request.manifest.payload).hexdigest()}",
            publisher="me",
            preflight=self.preflight,
        )
        if not request.validate_only:
            self.versions[name] = version
        return task_pb2.PublishVersionResponse(version=version)

    def GetVersion(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        found = self.versions.get(request.name) or _missing(context, request.name)
        return task_pb2.GetVersionResponse(version=found)

    def ListVersions(self, request: Any, context: Context) -> Any:  # noqa: N802
        """See the proto."""
        found = [each for name, each in self.versions.items() if name.startswith(f"{request.parent}/")]
        return task_pb2.ListVersionsResponse(versions=reversed(found))


def _missing(context: Context, name: str) -> NoReturn:
    context.abort(grpc.StatusCode.NOT_FOUND, f"{name}: not found")
    raise AssertionError
