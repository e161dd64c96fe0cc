import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.common.names import DeviceName, ReleaseName, VersionName
from libs.common.testing import START
from services.deployer.domain.buckets import bucket
from services.deployer.domain.model import (
    DeviceStage,
    Gate,
    Release,
    ReleaseState,
    Stage,
    StepStatus,
)
from services.deployer.domain.rollout import Book, failures_of, index_digest, parse_policy, profile_of


def release(
    sequence: int,
    version: str = "1",
    *,
    task: str = "genres",
    share: int = 10_000,
    policy: str = "",
    state: ReleaseState = ReleaseState.SUCCEEDED,
) -> Release:
    return Release(
        name=ReleaseName("acme", f"r{sequence}"),
        version=VersionName("acme", task, version),
        policy_json=policy,
        shares=(share,),
        gate=Gate(),
        salt=b"salt%d" % sequence,
        create_time=START,
        creator="me",
        state=state,
        steps=(StepStatus(share, START),),
        sequence=sequence,
    )


def wanted(
    *releases: Release,
    device: str = "d1",
    attributes: Mapping[str, str] | None = None,
    failures: Mapping[tuple[str, str], int] | None = None,
) -> list[str]:
    chosen = Book(releases).wanted(device, attributes or {}, failures or {})
    return [f"{offer.entry} by {offer.release.name.release}" for offer in chosen]


def test_the_newest_release_of_each_task_wins() -> None:
    other = release(3, "7", task="anomaly")
    assert wanted(release(1), release(2, "2"), other) == ["anomaly@7 by r3", "genres@2 by r2"]


def test_a_rolled_back_release_gives_back_what_was_there_before() -> None:
    assert wanted(release(1), release(2, "2", state=ReleaseState.ROLLED_BACK)) == ["genres@1 by r1"]
    assert wanted(release(1, state=ReleaseState.ROLLED_BACK)) == []


@pytest.mark.parametrize("state", [ReleaseState.PAUSED, ReleaseState.SUPERSEDED, ReleaseState.SUCCEEDED])
def test_devices_keep_what_a_release_gave_them_though_it_goes_no_further(state: ReleaseState) -> None:
    assert wanted(release(1, state=state)) == ["genres@1 by r1"]


def test_a_policy_selects_by_attributes_and_the_others_keep_the_older_version() -> None:
    linux = release(2, "2", policy='{"eq": ["os", "linux"]}')
    assert wanted(release(1), linux, attributes={"os": "linux"}) == ["genres@2 by r2"]
    assert wanted(release(1), linux, attributes={"os": "android"}) == ["genres@1 by r1"]


def test_only_devices_in_the_open_share_get_it() -> None:
    half = release(2, "2", share=5000, state=ReleaseState.RUNNING)
    for index in range(50):
        device = f"d{index}"
        inside = bucket(half.salt, device) < 5000
        expected = ["genres@2 by r2"] if inside else ["genres@1 by r1"]
        assert wanted(release(1), half, device=device) == expected


def test_a_version_that_failed_falls_back_and_a_newer_release_of_it_tries_again() -> None:
    failed = {("genres", "2"): 2}
    assert wanted(release(1), release(2, "2"), failures=failed) == ["genres@1 by r1"]
    assert wanted(release(1), release(2, "2"), release(3, "2"), failures=failed) == ["genres@2 by r3"]


def test_a_version_that_failed_does_not_come_back_by_an_older_release_of_it() -> None:
    assert wanted(release(1), release(2), failures={("genres", "1"): 2}) == []


@pytest.mark.parametrize("text", ["{", '{"eqq": ["os", "linux"]}', "[]", '{"eq": ["os"]}', "null", " "])
def test_a_malformed_policy_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_policy(text)
    assert "policy_json" in str(caught.value)


def test_the_index_holds_only_devices_that_differ() -> None:
    assert index_digest(("a@1",), ("a@1",)) == b""
    assert len(index_digest(("a@1",), ())) == 16
    assert index_digest(("a@1", "b@2"), ("a@1", "b@2")) == b""


releases = st.lists(
    st.builds(
        lambda version, share, state, policy: (version, share, state, policy),
        st.sampled_from("1234"),
        st.integers(1, 10_000),
        st.sampled_from(list(ReleaseState)),
        st.sampled_from(["", json.dumps({"eq": ["tier", "high"]}), json.dumps({"not": {"exists": "tier"}})]),
    ),
    max_size=8,
)
stages = st.lists(
    st.tuples(st.sampled_from("1234"), st.integers(1, 8), st.sampled_from(list(Stage))), max_size=8
)


@given(releases, stages, st.sampled_from(["d1", "d2", "d3"]), st.sampled_from([{}, {"tier": "high"}]))
def test_nothing_rolled_back_or_failed_is_ever_wanted(
    drawn: list[tuple[str, int, ReleaseState, str]],
    reported: list[tuple[str, int, Stage]],
    device: str,
    attributes: dict[str, str],
) -> None:
    made = [
        release(i, version, share=share, state=state, policy=policy)
        for i, (version, share, state, policy) in enumerate(drawn, 1)
    ]
    name = DeviceName("acme", device)
    failures = failures_of(DeviceStage(name, seq, "genres", v, stage) for v, seq, stage in reported)
    chosen = Book(made).wanted(device, attributes, failures)
    assert len(chosen) <= 1
    for offer in chosen:
        picked = offer.release
        assert picked.state is not ReleaseState.ROLLED_BACK
        assert bucket(picked.salt, device) < picked.open_share
        for version, sequence, stage in reported:
            if stage is Stage.FAILED and version == picked.version.version:
                assert sequence < picked.sequence
        newer = [r for r in made if r.sequence > picked.sequence and r.state is not ReleaseState.ROLLED_BACK]
        for other in newer:
            passed_over = (
                not parse_policy(other.policy_json)(attributes)
                or bucket(other.salt, device) >= other.open_share
                or any(
                    s is Stage.FAILED and v == other.version.version and q >= other.sequence
                    for v, q, s in reported
                )
            )
            assert passed_over
    assert profile_of(chosen) == tuple(offer.entry for offer in chosen)
