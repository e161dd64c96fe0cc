"""Endpoints: the models in the cloud that scripts may ask, and all that may leave the device for it.

A request is checked whole against the signed manifest: one undeclared, mistyped or oversized input refuses
all of it.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.task.jsontext import check_int, check_object, child, fault, show
from libs.task.tensor import DATATYPES, MAX_CONTENT_BYTES, MAX_INPUTS, MAX_NAME_BYTES, Tensor, tensor_fault

ENDPOINT_AGENT_VERSION = "0.3.0"
"""The first agent that asks models in the cloud."""
DEFAULT_ELEMENTS, MAX_ELEMENTS = 1024, 65536
MAX_ENDPOINTS = 16

_MODEL = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class EndpointInput:
    """An input that may leave the device."""

    name: str
    datatype: str
    max_elements: int = DEFAULT_ELEMENTS


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model that scripts may ask, and its inputs by name; a request may leave some out."""

    model: str
    inputs: Mapping[str, EndpointInput]

    @property
    def datatypes(self) -> Mapping[str, str]:
        """The datatype of each input."""
        return {each.name: each.datatype for each in self.inputs.values()}

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise Invalid unless a request with these inputs may leave the device.

        The message names the model and the input, never a value; reasons INPUT_UNDECLARED, INPUT_TYPE,
        INPUT_TOO_LARGE and BAD_REQUEST.
        """
        if not tensors:
            raise self._refuse("BAD_REQUEST", "", "a request needs at least one input")
        seen: set[str] = set()
        for tensor in tensors:
            declared = self.inputs.get(tensor.name)
            if declared is None:
                known = ", ".join(self.inputs)[:400]
                hint = did_you_mean(tensor.name, self.inputs)
                text = f"is not declared by the manifest; it declares: {known}{hint}"
                raise self._refuse("INPUT_UNDECLARED", tensor.name, text)
            if tensor.name in seen:
                raise self._refuse("BAD_REQUEST", tensor.name, "is there twice")
            seen.add(tensor.name)
            if tensor.datatype != declared.datatype:
                raise self._refuse("INPUT_TYPE", tensor.name, f"must be {declared.datatype}")
            fit_fault = tensor_fault(tensor)
            if fit_fault:
                raise self._refuse("INPUT_TYPE", tensor.name, fit_fault)
            elements = math.prod(tensor.shape)
            if elements > declared.max_elements:
                text = f"has {elements} elements, more than the declared {declared.max_elements}"
                raise self._refuse("INPUT_TOO_LARGE", tensor.name, text)
            # The dimensions of nothing could say anything.
            longest = max(tensor.shape, default=0)
            if longest > declared.max_elements:
                text = (
                    f"has a dimension of {longest}, more than the declared {declared.max_elements} elements"
                )
                raise self._refuse("INPUT_TOO_LARGE", tensor.name, text)
        total = sum(len(tensor.content) for tensor in tensors)
        if total > MAX_CONTENT_BYTES:
            text = f"its inputs have {total} bytes together, more than {MAX_CONTENT_BYTES}"
            raise self._refuse("INPUT_TOO_LARGE", "", text)

    def _refuse(self, reason: str, name: str, text: str) -> Invalid:
        name = name[:64]
        subject = f"input {name!r} {text}" if name else text
        metadata = {"model": self.model, "input": name}
        return Invalid(f"model {self.model!r}: {subject}", reason=reason, metadata=metadata)


def find_endpoint(endpoints: Mapping[str, Endpoint], model: str) -> Endpoint:
    """Return the declaration of a model; raise Invalid, reason MODEL_UNDECLARED, when there is none."""
    found = endpoints.get(model)
    if found is None:
        known = ", ".join(endpoints)[:400] or "none"
        text = f"is not declared by the manifest; it declares: {known}{did_you_mean(model, endpoints)}"
        raise Invalid(f"model {model[:128]!r} {text}", reason="MODEL_UNDECLARED")
    return found


def check_endpoints(endpoints: Iterable[manifest_pb2.Endpoint]) -> Mapping[str, Endpoint]:
    """Return a manifest's endpoints by model; raise Invalid for the first fault, with its path."""
    checked: dict[str, Endpoint] = {}
    for index, endpoint in enumerate(endpoints):
        where = f"endpoints[{index}]"
        if index >= MAX_ENDPOINTS:
            raise fault("endpoints", f"a task has at most {MAX_ENDPOINTS} endpoints")
        _check_model(endpoint.model, f"{where}.model")
        if endpoint.model in checked:
            raise fault(f"{where}.model", f"{show(endpoint.model)} is there already")
        if not 1 <= len(endpoint.inputs) <= MAX_INPUTS:
            raise fault(f"{where}.inputs", f"must be 1 to {MAX_INPUTS}, not {len(endpoint.inputs)}")
        inputs: dict[str, EndpointInput] = {}
        for number, each in enumerate(endpoint.inputs):
            at = f"{where}.inputs[{number}]"
            _check_name(each.name, f"{at}.name")
            if each.name in inputs:
                raise fault(f"{at}.name", f"{show(each.name)} is there already")
            _check_datatype(each.datatype, f"{at}.datatype")
            most = each.max_element_count or DEFAULT_ELEMENTS
            if most > MAX_ELEMENTS:
                raise fault(f"{at}.max_element_count", f"must be at most {MAX_ELEMENTS}, not {most}")
            inputs[each.name] = EndpointInput(each.name, each.datatype, most)
        checked[endpoint.model] = Endpoint(endpoint.model, inputs)
    return checked


def endpoints_from_value(value: object, path: str) -> list[manifest_pb2.Endpoint]:
    """Read the `endpoints` of a `task.json`; raise Invalid with the JSON path of the first fault."""
    if not isinstance(value, dict):
        raise fault(path, f"must be an object from model names to their inputs, not {show(value)}")
    if len(value) > MAX_ENDPOINTS:
        raise fault(path, f"a task has at most {MAX_ENDPOINTS} endpoints, not {len(value)}")
    endpoints = []
    for model, inputs in value.items():
        at = child(path, model)
        _check_model(model, at)
        if not isinstance(inputs, dict) or not 1 <= len(inputs) <= MAX_INPUTS:
            allowed = f"an object from 1 to {MAX_INPUTS} input names to datatypes"
            raise fault(at, f"must be {allowed}, not {show(inputs)}")
        members = [_input_from_value(name, each, child(at, name)) for name, each in inputs.items()]
        endpoints.append(manifest_pb2.Endpoint(model=model, inputs=members))
    return endpoints


def _input_from_value(name: str, value: object, path: str) -> manifest_pb2.EndpointInput:
    """Read an input: a datatype's name, or an object with the datatype and a bound."""
    _check_name(name, path)
    keys = value if isinstance(value, dict) else {"datatype": value}
    check_object(keys, path, required=("datatype",), optional=("max_elements",))
    at = child(path, "datatype") if isinstance(value, dict) else path
    most = keys.get("max_elements", DEFAULT_ELEMENTS)
    return manifest_pb2.EndpointInput(
        name=name,
        datatype=_check_datatype(keys["datatype"], at),
        max_element_count=check_int(most, child(path, "max_elements"), least=1, most=MAX_ELEMENTS),
    )


def _check_model(value: str, where: str) -> None:
    if not _MODEL.fullmatch(value) or value in (".", ".."):
        text = f"{show(value)} is no model; use 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'"
        raise fault(where, text)


def _check_name(value: str, where: str) -> None:
    # A name may come from JSON, which can hold half of a surrogate pair.
    size = len(value.encode("utf-8", "replace"))
    if not 1 <= size <= MAX_NAME_BYTES or not value.isprintable():
        text = f"must be 1 to {MAX_NAME_BYTES} bytes without control characters, not {show(value)}"
        raise fault(where, text)


def _check_datatype(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in DATATYPES:
        hint = did_you_mean(value, DATATYPES) if isinstance(value, str) else ""
        raise fault(where, f"must be one of {', '.join(DATATYPES)}, not {show(value)}{hint}")
    return value
