"""Metrics of the agent: `isthmus_device_agent_*`, read off its state when they are scraped."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.device_agent.domain.rollout import State
from services.device_agent.domain.triggers import TriggerStats
from services.device_agent.status import Status
from services.device_agent.vm import VmStats

_COUNTERS = {
    "event_count": ("events", "Events taken."),
    "event_bytes": ("event_bytes", "Bytes of those events as JSON."),
    "trigger_count": ("triggers", "Trigger matches."),
    "dropped_run_count": ("dropped_runs", "Runs dropped because too many waited, or with their version."),
    "withdrawn_run_count": ("withdrawn_runs", "Of the dropped runs, those dropped with their version."),
    "frame_count": ("frames", "Frames queued for the tunnel."),
    "frame_bytes": ("frame_bytes", "Payload bytes of those frames."),
    "acked_frame_count": ("acked_frames", "Frames that the cloud has acknowledged."),
    "refused_frame_count": ("refused_frames", "Frames that the manifest doesn't allow."),
    "request_count": ("requests", "Requests to models in the cloud that the manifest allows."),
    "request_bytes": ("request_bytes", "Bytes of those requests' tensors that were sent."),
    "answer_count": ("answers", "Requests answered in time."),
    "answer_bytes": ("answer_bytes", "Bytes of those answers' tensors."),
    "late_answer_count": ("late_answers", "Answers that came too late and were dropped."),
    "refused_request_count": (
        "refused_requests",
        "Runs that failed because the manifest doesn't declare what they asked.",
    ),
    "dropped_frame_count": (
        "dropped_frames",
        "Frames that became tombstones: for newer ones, or unreadable.",
    ),
    "bad_row_count": ("bad_rows", "Rows of the store that couldn't be used and were dropped."),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured, of one moment."""

    status: Status
    vm: VmStats
    triggers: TriggerStats
    bad_lines: int
    """Lines of the events file that were no events."""
    left_out_streams: int
    """Streams with frames that have no place on the tunnel's connection."""


class Watched(Protocol):
    """Where the figures come from; read on the scraper's thread."""

    def figures(self) -> Figures:
        """Return the figures of now."""
        ...


class AgentCollector(Collector):
    """Turns the agent's state into metrics."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the figures are there only while the agent runs."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        figures = self._watched.figures()
        status, vm, triggers = figures.status, figures.vm, figures.triggers
        counters = status.counters
        for key, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"isthmus_device_agent_{name}", text, value=counters.get(key, 0))
        runs = CounterMetricFamily("isthmus_device_agent_runs", "Runs that ended.", labels=["result"])
        runs.add_metric(["success"], counters.get("success_count", 0))
        runs.add_metric(["failure"], counters.get("failure_count", 0))
        yield runs
        yield CounterMetricFamily(
            "isthmus_device_agent_bad_lines",
            "Lines of the events file that are no events.",
            value=figures.bad_lines,
        )
        evicted = CounterMetricFamily(
            "isthmus_device_agent_evicted_matches",
            "Partial matches given up to keep the triggers' state bounded, by cause.",
            labels=["cause"],
        )
        evicted.add_metric(["partials"], triggers.evicted_partials)
        evicted.add_metric(["users"], triggers.evicted_users)
        yield evicted
        yield _gauge("partial_matches", "Partial matches of triggers that wait.", triggers.partials)
        yield _gauge("stored_events", "Events kept.", counters.get("stored_events", 0))
        yield _gauge("stored_event_bytes", "Bytes of them as JSON.", counters.get("stored_bytes", 0))
        yield _gauge("waiting_frames", "Frames that wait for the cloud.", counters.get("live_frames", 0))
        yield _gauge("waiting_frame_bytes", "Payload bytes of them.", counters.get("live_bytes", 0))
        yield _gauge("problems", "What is wrong right now.", len(status.problems))
        yield _gauge(
            "left_out_streams",
            "Streams with frames that wait for a place on the tunnel's connection.",
            figures.left_out_streams,
        )
        yield _gauge("tunnel_connected", "The tunnel is connected.", status.tunnel_connected)
        yield _gauge("push_connected", "The push watch is held.", status.push_connected)
        versions = GaugeMetricFamily(
            "isthmus_device_agent_versions", "Task versions by state.", labels=["state"]
        )
        for state in State:
            versions.add_metric([state.value], sum(version.state is state for version in status.versions))
        yield versions
        yield _gauge("vm_workers", "Processes that run tasks.", vm.workers)
        deaths = CounterMetricFamily(
            "isthmus_device_agent_vm_worker_deaths", "Workers that ended, by cause.", labels=["cause"]
        )
        for cause, count in vm.deaths.items():
            deaths.add_metric([cause], count)
        yield deaths


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"isthmus_device_agent_{name}", text, value=float(value))
