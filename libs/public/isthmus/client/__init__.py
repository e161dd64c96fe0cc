"""Channels to an Isthmus gateway for programs of others; the stubs beside this are ``isthmus.<name>.v1``.

::

    from isthmus.client import connect
    from isthmus.deployer.v1 import task_pb2, task_pb2_grpc

    with connect("gateway.example.org:7400", api_key) as channel:
        tasks = task_pb2_grpc.TaskServiceStub(channel)
        print(tasks.ListTasks(task_pb2.ListTasksRequest(parent="tenants/default")))

Nothing but grpcio is needed.
"""

from isthmus.client._aio import connect_async
from isthmus.client._sync import connect

__all__ = ["connect", "connect_async"]
