from prometheus_client import CollectorRegistry

from libs.common.names import ReleaseName
from services.deployer.domain.model import Counts, Stage
from services.deployer.metrics import Metrics


def test_preflights_are_counted_and_those_with_a_verdict_timed() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.preflight("passed", 3.0)
    metrics.preflight("error", 5.0)

    def count(outcome: str) -> float | None:
        return registry.get_sample_value("isthmus_deployer_preflights_total", {"outcome": outcome})

    assert [count(each) for each in ("passed", "failed", "skipped", "error")] == [1, 0, 0, 1]
    assert registry.get_sample_value("isthmus_deployer_preflight_seconds_sum") == 3.0


def test_devices_of_all_releases_are_shown_by_stage() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    one, two = ReleaseName("acme", "one"), ReleaseName("acme", "two")

    def shown() -> dict[str, float]:
        return {
            sample.labels["stage"]: sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "isthmus_deployer_release_devices"
        }

    metrics.release_counts(one, Counts.of(5, {Stage.CONFIRMED: 2, Stage.FAILED: 1}))
    metrics.release_counts(two, Counts.of(7, {Stage.CONFIRMED: 3}))
    assert set(shown()) == {"targeted", *(stage.name.lower() for stage in Stage)}
    assert (shown()["targeted"], shown()["confirmed"], shown()["failed"]) == (12, 5, 1)
    metrics.release_counts(one, None)
    assert (shown()["targeted"], shown()["confirmed"], shown()["failed"]) == (7, 3, 0)
