import pickle
import re

import pytest

from libs.common import errors
from libs.common.errors import Error

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Error)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_reason_for_programs(kind: type[Error]) -> None:
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", kind("x").reason)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_a_process_pool(kind: type[Error]) -> None:
    error = kind("no 'x'", reason="NO_X", metadata={"field": "x"}, retry_after_s=2.5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.reason, dict(copy.metadata), copy.retry_after_s) == (
        "no 'x'",
        "NO_X",
        {"field": "x"},
        2.5,
    )


def test_only_overload_and_absence_may_be_retried_as_they_are() -> None:
    assert {kind.__name__ for kind in KINDS if kind("x").retriable} == {"Exhausted", "Unavailable"}


def test_metadata_can_not_be_shared_by_accident() -> None:
    given = {"a": "b"}
    error = errors.Invalid("x", metadata=given)
    given["a"] = "c"
    assert error.metadata == {"a": "b"}
    with pytest.raises(TypeError):
        error.metadata["a"] = "c"  # type: ignore[index]
