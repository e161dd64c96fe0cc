"""Reads ONNX: bytes of anybody become a `Graph`, or an error that says where and why not.

Only this package knows the onnx package. `model` reads the file, `tensors` its constants, `shapes` its
inputs, `nodes` its operators against ONNX's own schemas, `functions` puts bodies in place of calls,
`expansion` definitions in place of operators that ONNX defines by others, `contrib` those of operators
of ONNX Runtime; `ordering` sorts.
"""

from services.engine.reading.model import read_model

__all__ = ["read_model"]
