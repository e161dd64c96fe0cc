"""Whether serving has what a task's scripts ask, told when the task is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inference import open_inference_pb2
from libs.cli.endpoints import inference
from libs.cli.session import Session
from libs.common.errors import Error, NotFound
from libs.common.names import shown
from libs.task.endpoints import Endpoint


def warn_of_models(session: Session, endpoints: Mapping[str, Endpoint]) -> None:
    """Remark on models that aren't served, or take something else than scripts would send.

    Devices do without an answer then, so that it is no error. It needs the scope `models:read`; where that is
    missing, or serving can't say, nothing is told.
    """
    for model, declared in endpoints.items():
        request = open_inference_pb2.ModelMetadataRequest(name=model)
        try:
            found = session.call(inference(session).ModelMetadata, request)
        except NotFound:
            session.output.remark(
                f"the scripts ask the model {shown(model)}, which isn't served: devices get no answer "
                f"until it is (isthmus endpoint deploy {model} FILE)"
            )
            continue
        except Error:
            continue
        told = "; ".join(_differences(declared, found))
        if told:
            session.output.remark(
                f"the scripts ask the model {shown(model)} for what it doesn't take: {told}"
            )


def _differences(declared: Endpoint, found: open_inference_pb2.ModelMetadataResponse) -> Iterator[str]:
    taken = {each.name: each.datatype for each in found.inputs}
    for name, each in declared.inputs.items():
        if name not in taken:
            yield f"it has no input {shown(name)}, but {', '.join(map(shown, taken)) or 'none'}"
        elif taken[name] != each.datatype:
            yield f"its input {shown(name)} is {taken[name]}, and the task declares {each.datatype}"
    missing = [name for name in taken if name not in declared.inputs]
    if missing:
        yield f"it needs {', '.join(map(shown, missing))} as well, which the task doesn't declare"
