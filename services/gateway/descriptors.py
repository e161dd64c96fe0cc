"""The whole descriptor set: every method that the stubs describe, for routing, suggestions and reflection."""

import importlib
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

import inference
import isthmus
from services.gateway.domain.routes import Method


def _files() -> Iterator[FileDescriptor]:
    """Import every generated module of the namespaces `isthmus` and `inference`, and yield its file."""
    # Not pkgutil: it passes over folders without __init__.py, and the namespaces have none.
    roots = [(package.__name__, Path(root)) for package in (isthmus, inference) for root in package.__path__]
    for package, root in roots:
        for path in sorted(root.rglob("*_pb2.py")):
            name = ".".join((package, *path.relative_to(root).with_suffix("").parts))
            file: FileDescriptor = importlib.import_module(name).DESCRIPTOR
            yield file


def _services() -> Iterator[ServiceDescriptor]:
    for file in _files():
        yield from file.services_by_name.values()


def all_methods() -> list[Method]:
    """Return every method of every service that the stubs describe."""
    return [
        Method(f"/{service.full_name}/{method.name}", method.client_streaming, method.server_streaming)
        for service in _services()
        for method in service.methods
    ]


def pool() -> descriptor_pool.DescriptorPool:
    """Return the pool that holds them all."""
    return descriptor_pool.Default()
