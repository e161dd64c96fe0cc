"""What a task's model gives, as JSON holds it."""

import json

import ml_dtypes
import numpy as np

from services.device_agent.vm.worker.model import as_lists


def test_outputs_of_every_kind_become_plain_values() -> None:
    words = np.empty(2, np.object_)
    words[:] = ["a", "b"]
    outputs = {
        "tensor": np.array([[1, 2]], np.int8),
        "narrow": np.array([0.5], ml_dtypes.bfloat16),
        "words": words,
        "list": [np.array([1.0]), np.array(True)],
        "lists": [[np.array([1])], []],
        "nothing": None,
    }
    found = as_lists(outputs)
    assert json.loads(json.dumps(found)) == {
        "tensor": [[1, 2]],
        "narrow": [0.5],
        "words": ["a", "b"],
        "list": [[1.0], True],
        "lists": [[[1]], []],
        "nothing": None,
    }
