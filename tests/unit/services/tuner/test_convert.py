"""What is asked is what is searched, whatever it is."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.tuner.v1 import tuner_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import ModelName
from libs.common.paging import encode_token
from services.tuner import convert
from services.tuner.domain.model import Constraint, Load, Objective, Parameter, SamplerKind, Spec
from services.tuner.domain.validation import METRICS, PARAMETERS, check_spec
from services.tuner.stores.texts import dump_spec, load_spec
from services.tuner.testing import make_spec


@st.composite
def parameters(draw):
    found = []
    for name in draw(st.lists(st.sampled_from(sorted(PARAMETERS)), min_size=1, unique=True)):
        least, most, whole = PARAMETERS[name]
        numbers = st.integers(int(least), int(most)).map(float) if whole else st.floats(least, most)
        values = draw(st.lists(numbers, min_size=1, max_size=64, unique=True))
        found.append(Parameter(name, tuple(sorted(values))))
    return tuple(found)


seconds = st.integers(1_000_000_000, 600_000_000_000).map(lambda nanos: nanos / 1e9)
specs = st.builds(
    Spec,
    model=st.just(ModelName("acme", "Ranker.v2")),
    parameters=parameters(),
    sampler=st.sampled_from(SamplerKind),
    seed=st.integers(0, 2**64 - 1),
    max_trials=st.integers(1, 1000),
    parallel_trials=st.integers(1, 16),
    max_failures=st.integers(1, 1000),
    objective=st.sampled_from(
        [Objective("goodput_rps"), Objective("p99_ms", True), Objective("peak_memory_bytes", True)]
    ),
    constraints=st.lists(
        st.builds(Constraint, st.sampled_from(METRICS), st.floats(0, allow_infinity=False)),
        max_size=16,
    ).map(tuple),
    load=st.builds(
        Load,
        concurrency=st.integers(1, 256),
        rate_rps=st.floats(0, 100_000),
        duration_s=seconds,
        target_s=st.integers(1, 60_000).map(lambda millis: millis / 1000),
        rows=st.integers(1, 4096),
    ),
    deadline_s=seconds,
)


@settings(deadline=None)
@given(specs)
def test_a_specification_survives_the_wire_and_the_store(spec):
    check_spec(spec)
    message = pb.ExperimentSpec.FromString(convert.spec_message(spec).SerializeToString())
    assert convert.spec(message) == spec
    assert load_spec(dump_spec(spec)) == spec


def test_what_is_left_out_takes_its_default():
    spec = convert.spec(
        pb.ExperimentSpec(
            model="tenants/acme/models/m",
            parameters=[pb.Parameter(name="max_batch_rows", values=[1, 2])],
            objective=pb.Objective(metric="goodput_rps"),
        )
    )
    check_spec(spec)
    assert spec.sampler is SamplerKind.BAYESIAN
    assert (spec.max_trials, spec.parallel_trials, spec.max_failures, spec.deadline_s) == (20, 1, 5, 3600)
    assert spec.load == Load(concurrency=8, rate_rps=0, duration_s=5, target_s=0.1, rows=1)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_bytes_from_anybody_are_refused_or_read(data):
    message = pb.ExperimentSpec()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return
    try:
        check_spec(convert.spec(message))
    except Invalid as error:
        field = error.message.partition(":")[0]
    else:
        field = "spec."
    assert field.startswith("spec.")


def test_a_bound_below_what_any_metric_is_is_refused():
    with pytest.raises(Invalid, match=r"spec.constraints\[0\].at_most: -5 is below 0, where no p99_ms is"):
        check_spec(make_spec(constraints=(Constraint("p99_ms", -5.0),)))


@pytest.mark.parametrize("after", [-1, "1", 2**31, 1.5, None, [1]])
def test_a_token_of_another_list_is_refused(after):
    with pytest.raises(Invalid, match="page_token"):
        convert.trial_page(encode_token({"after": after}))
    if not isinstance(after, str):
        with pytest.raises(Invalid, match="page_token"):
            convert.experiment_page(encode_token({"after": after}))


def test_the_same_request_has_the_same_fingerprint():
    request = pb.CreateExperimentRequest(parent="tenants/acme", request_id="r1")
    request.spec.CopyFrom(convert.spec_message(make_spec()))
    first = convert.request(request)
    request.request_id = "r2"
    assert convert.request(request).fingerprint == first.fingerprint
    request.spec.seed += 1
    assert convert.request(request).fingerprint != first.fingerprint
    assert convert.request(pb.CreateExperimentRequest()) is None
