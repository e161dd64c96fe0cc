"""Between messages and domain values: the only code that knows both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.duration_pb2 import Duration

from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from libs.common.names import TenantName, shown
from libs.common.paging import decode_token, encode_token, page_size
from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType
from services.engine.convert_explanation import explanation as explanation
from services.engine.domain.decompose.operator import Operator
from services.engine.domain.limits import MAX_EXTERNAL_FILES, check_dimensions, check_external_path
from services.engine.domain.model import Model, Stage
from services.engine.domain.optimiser import Optimised
from services.engine.domain.reference import data_type

Array = npt.NDArray[Any]
MAX_INPUTS = 1024
MAX_SIZES = 1024
MAX_RANK = 8
_KINDS = {
    "atomic": engine_pb2.OperatorSpec.KIND_ATOMIC,
    "transform": engine_pb2.OperatorSpec.KIND_TRANSFORM,
    "composite": engine_pb2.OperatorSpec.KIND_COMPOSITE,
    "static": engine_pb2.OperatorSpec.KIND_STATIC,
    "control": engine_pb2.OperatorSpec.KIND_CONTROL,
}
_MOST_ELEMENTS = 2**40
_BITS = {
    DataType.INT4: 4,
    DataType.UINT4: 4,
    DataType.FLOAT4E2M1: 4,
    DataType.INT2: 2,
    DataType.UINT2: 2,
}
"""Of types narrower than the byte that each element takes."""
_NO_STRINGS = "arrays of strings can't be sent; run the plan where they are"


def tenant_of(parent: str) -> str:
    """Return the tenant of `tenants/{t}`; raise Invalid."""
    return TenantName.parse(parent, "parent").tenant


def dimensions(messages: Iterable[engine_pb2.DimensionBounds]) -> Mapping[str, tuple[int, int]]:
    """Return bounds by name; raise Invalid."""
    return check_dimensions([(each.name, each.minimum, each.maximum) for each in messages])


def model_of(request: engine_pb2.OptimizeRequest | engine_pb2.ExplainRequest) -> Model:
    """Return the model that a request is about; raise Invalid for files of its data that are nowhere."""
    data = request.external_data
    if len(data) > MAX_EXTERNAL_FILES:
        raise Invalid(
            f"external_data: {len(data)} files are more than {MAX_EXTERNAL_FILES}",
            reason="TOO_MANY",
            metadata={"field": "external_data"},
        )
    files = {}
    for path in sorted(data):
        try:
            files[check_external_path(path)] = BlobRef.from_proto(data[path])
        except Invalid as error:
            raise Invalid(
                f"external_data: {error.message}", reason=error.reason, metadata={"field": "external_data"}
            ) from error
    return Model(BlobRef.from_proto(request.model), files)


def sizes(request: engine_pb2.ExplainRequest) -> Mapping[str, int]:
    """Return the sizes that figures are asked at; whether there are such dimensions the plan says."""
    if len(request.sizes) > MAX_SIZES:
        raise Invalid(
            f"sizes: {len(request.sizes)} are more than {MAX_SIZES}",
            reason="TOO_MANY",
            metadata={"field": "sizes"},
        )
    return dict(sorted(request.sizes.items()))


def subject(request: engine_pb2.ExplainRequest) -> tuple[Model | None, BlobRef | None]:
    """Return the (model, plan) to explain, one of which is None; raise Invalid for neither."""
    if request.HasField("model"):
        return model_of(request), None
    if request.external_data:
        raise Invalid(
            "external_data: a plan has its data in it; leave them out", metadata={"field": "external_data"}
        )
    if not request.HasField("plan"):
        raise Invalid("subject: is missing; give a model or a plan", metadata={"field": "subject"})
    if request.dimensions:
        raise Invalid("dimensions: a plan has its own; leave them out", metadata={"field": "dimensions"})
    return None, BlobRef.from_proto(request.plan)


# ---- optimising and explaining ----
def progress(event: Stage | Optimised) -> engine_pb2.OptimizeResponse:
    """Return an event of making a plan as a message."""
    if isinstance(event, Stage):
        elapsed = Duration()
        elapsed.FromTimedelta(timedelta(seconds=event.elapsed_s))
        return engine_pb2.OptimizeResponse(
            stage=engine_pb2.Stage(name=event.name, elapsed_time=elapsed, summary=event.summary)
        )
    return engine_pb2.OptimizeResponse(
        result=engine_pb2.OptimizeResult(
            plan=event.plan.to_proto(),
            explanation=explanation(event.explanation),
            max_error=event.verdict.max_error,
            comparison_count=event.verdict.comparisons,
            cached=event.cached,
        )
    )


# ---- inference ----
def arrays(messages: Sequence[engine_pb2.InferTensor]) -> dict[str, Array]:
    """Return tensors of a request by name, without copying; raise Invalid naming the first that is wrong."""
    if len(messages) > MAX_INPUTS:
        raise Invalid(f"inputs: {len(messages)} are more than {MAX_INPUTS}", metadata={"field": "inputs"})
    found: dict[str, Array] = {}
    for index, message in enumerate(messages):
        field = f"inputs[{index}]"
        if message.name in found:
            raise Invalid(f"{field}.name: {shown(message.name)} comes twice", metadata={"field": field})
        found[message.name] = _array(message, field)
    return found


def _array(message: engine_pb2.InferTensor, field: str) -> Array:
    try:
        type_ = DataType(message.type)
    except ValueError:
        raise Invalid(
            f"{field}.type: {message.type} is not a type of elements", metadata={"field": field}
        ) from None
    if type_ is DataType.STRING:
        raise Invalid(f"{field}.type: {_NO_STRINGS}", metadata={"field": field})
    dtype = DTYPES[type_]
    if len(message.shape) > MAX_RANK:
        raise Invalid(f"{field}.shape: has more than {MAX_RANK} sizes", metadata={"field": field})
    # numpy refuses sizes whose product is too large also where another one is 0.
    if math.prod(max(size, 1) for size in message.shape) > _MOST_ELEMENTS:
        raise Invalid(
            f"{field}.shape: {shown(message.name)} has more than {_MOST_ELEMENTS} elements",
            metadata={"field": field},
        )
    wanted = math.prod(message.shape) * dtype.itemsize
    if wanted != len(message.data):
        raise Invalid(
            f"{field}.data: {shown(message.name)} has {len(message.data)} bytes, and {dtype.name} of shape "
            f"{list(message.shape)} takes {wanted}",
            metadata={"field": field},
        )
    if dtype == np.bool_ and message.data.strip(b"\0\1"):
        raise Invalid(f"{field}.data: a BOOL is neither 0 nor 1", metadata={"field": field})
    bits = _BITS.get(type_)
    if bits and np.frombuffer(message.data, np.uint8).max(initial=0) >> bits:
        raise Invalid(
            f"{field}.data: an {type_.name} has more than its lowest {bits} bits set",
            metadata={"field": field},
        )
    return np.frombuffer(message.data, dtype).reshape(tuple(message.shape))


def tensors(outputs: Sequence[tuple[str, Array]]) -> list[engine_pb2.InferTensor]:
    """Return arrays as messages; raise Invalid for one of strings."""
    return [_message(name, array) for name, array in outputs]


def _message(name: str, array: Array) -> engine_pb2.InferTensor:
    type_ = data_type(array.dtype)
    if type_ is DataType.STRING:
        raise Invalid(f"output {shown(name)}: {_NO_STRINGS}")
    return engine_pb2.InferTensor(
        name=name,
        type=plan_pb2.DataType.ValueType(int(type_)),
        shape=array.shape,
        data=array.astype(DTYPES[type_], copy=False).tobytes(),
    )


# ---- the registry ----
def operators(
    registry: Mapping[str, Operator], request: engine_pb2.ListOperatorsRequest
) -> engine_pb2.ListOperatorsResponse:
    """Return a page of the operators, by name; raise Invalid for a foreign token."""
    after, limit = decode_token(request.page_token).get("operator", ""), page_size(request.page_size)
    if not isinstance(after, str):
        raise Invalid("page_token: not a token of this list", reason="BAD_PAGE_TOKEN")
    names = sorted(name for name in registry if name > after)
    page = names[:limit]
    return engine_pb2.ListOperatorsResponse(
        operators=[
            engine_pb2.OperatorSpec(
                name=name,
                kind=_KINDS[registry[name].kind],
                since_opset=registry[name].since,
                family=registry[name].family,
            )
            for name in page
        ],
        next_page_token=encode_token({"operator": page[-1]}) if len(names) > limit else "",
        atomic_operators=sorted(ATOMICS),
        host_operators=sorted(HOST),
    )
