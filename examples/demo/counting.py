"""What the devices did in all: counted on devices and in the cloud, and compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from examples.demo.cloud import Cloud
from examples.demo.devices import Result
from examples.demo.fleet import Fleet
from examples.demo.report import Report, quantile
from examples.demo.scenario import Scenario, Value


@dataclass(frozen=True, slots=True)
class Counting:
    """Adds figures and checks to the report, once all that was fed has been worked off."""

    cloud: Cloud
    fleet: Fleet
    scenario: Scenario
    report: Report

    def run(self, calm: tuple[float, float]) -> None:
        """Count everything; latencies are those of results read in the calm time given."""
        total = self.fleet.counters()
        results = self.fleet.results()
        good = [result for result in results if result.value is not None]
        self._figures(total, good, calm)
        self._events(total)
        self._runs(total, results, good)
        self._results(good)
        self._frames(total)
        if self.scenario.endpoint:
            self._requests(total, good)
        problems = self.fleet.problems()
        self.report.check("no device reports a problem", not problems, "; ".join(problems) or "none")
        restarts = sum(device.restarts for device in self.fleet.devices)
        self.report.check(
            "no agent ends by itself", restarts == 0, f"{restarts} were started again" if restarts else "none"
        )

    def _figures(self, total: Counter[str], good: list[Result], calm: tuple[float, float]) -> None:
        sent_events = self.fleet.sent_events()
        synthetic = sum(1 for event in sent_events if event.fields.get("synthetic"))
        raw, frames = total["event_bytes"], total["frame_bytes"]
        self.report.figures |= {
            "events": total["event_count"],
            "events_synthetic": synthetic,
            "triggers": total["trigger_count"],
            "results": len(good),
            "failed_runs_of_the_bad_version": total["failure_count"],
            "frames_sent": total["frame_count"],
            "raw_event_bytes": raw,
            "sent_bytes": frames + total["request_bytes"],
            "bytes_saved_share": 1 - (frames + total["request_bytes"]) / raw if raw else 0.0,
        }
        if self.scenario.endpoint:
            self.report.figures |= {
                "requests": total["request_count"],
                "request_bytes": total["request_bytes"],
                "answers": total["answer_count"],
                "answer_bytes": total["answer_bytes"],
            }
        undisturbed = [result for result in good if calm[0] <= result.read_s <= calm[1]]
        for name, sources in (("device_run", ("device", None)), ("cascade_run", ("cloud",))):
            spent = [each.latency_ms for each in undisturbed if source_of(each) in sources]
            if spent:
                self.report.figures |= {
                    f"{name}_p50_ms": quantile(spent, 0.50),
                    f"{name}_p99_ms": quantile(spent, 0.99),
                }
        if synthetic:
            self.report.notes.append(
                f"Synthetic: {synthetic:,} of the events are page visits derived from the ratings, and "
                "marked so; the ratings are real."
            )

    def _events(self, total: Counter[str]) -> None:
        sent = sum(device.sent for device in self.fleet.devices)
        self.report.check(
            "every event is taken once",
            total["event_count"] == sent > 0,
            f"{total['event_count']:,} stored of {sent:,} sent",
        )

    def _runs(self, total: Counter[str], results: list[Result], good: list[Result]) -> None:
        self.report.check(
            "every trigger ends in one result or a counted drop",
            total["trigger_count"] == len(results) + total["dropped_run_count"] and len(good) > 0,
            f"{total['trigger_count']:,} triggers, {len(good):,} results, "
            f"{len(results) - len(good):,} failures, "
            f"{total['dropped_run_count']:,} dropped, {total['withdrawn_run_count']:,} of them with their "
            "version, which was taken back",
        )

    def _results(self, good: list[Result]) -> None:
        there = {str(result.value["event_id"]) for result in good if result.value is not None}
        expected: dict[str, Value] = {}
        for device in self.fleet.devices:
            expected |= self.scenario.expected(device.events[: device.sent], there)
        agrees, right = self.scenario.agrees, Counter[str]()
        for result in good:
            assert result.value is not None
            wanted = expected[str(result.value["event_id"])]
            right[source_of(result) or "device"] += agrees(result.value, wanted)
        self.report.check(
            "each result is what a second implementation computes",
            right.total() == len(good) > 0,
            f"{right.total():,} of {len(good):,} results agree"
            + (f", {right['cloud']:,} of them from the cloud" if self.scenario.endpoint else ""),
        )
        self.scenario.judge(good, self.report)

    def _frames(self, total: Counter[str]) -> None:
        records = self.cloud.lines("tunnel", "export", "--tombstones")
        keys = Counter((r["device"], r["stream"], r["epoch"], r["sequence"]) for r in records)
        self.report.check(
            "every frame arrives exactly once",
            len(records) == len(keys) == total["frame_count"] > 0,
            f"{total['frame_count']:,} queued on devices, {len(records):,} in the cloud's log, "
            f"{len(records) - len(keys):,} twice",
        )
        fields = {name for record in records for name in record.get("payload", {})}
        self.report.check(
            "only declared fields left the devices",
            bool(fields)
            and fields <= self.scenario.declared
            and total["refused_frame_count"] == total["refused_request_count"] == 0,
            f"fields seen in the cloud: {', '.join(sorted(fields))}",
        )

    def _requests(self, total: Counter[str], good: list[Result]) -> None:
        sources = Counter(source_of(result) for result in good)
        asked = sources["cloud"] + sources["unanswered"]
        late = min(total["late_answer_count"], sources["unanswered"])
        self.report.figures |= {
            "asked": asked,
            "answered": sources["cloud"],
            "unanswered": sources["unanswered"],
            "answers_too_late": late,
            "sent_up_share": asked / len(good) if good else 0.0,
        }
        self.report.check(
            "uncertain cases go up and come back",
            0 < sources["cloud"] == total["answer_count"] <= total["request_count"],
            f"{asked:,} of {len(good):,} were uncertain; {total['request_count']:,} requests, "
            f"{total['answer_count']:,} answers, {sources['cloud']:,} results from the cloud, "
            f"{sources['unanswered']:,} from the device"
            + (f" ({_why(late, sources['unanswered'] - late)})" if sources["unanswered"] else ""),
        )


def _why(late: int, never: int) -> str:
    """Tell why devices had no answer in time."""
    return (
        f"to {late:,} the answer came too late, to {never:,} none came: not connected, paused after some "
        "that weren't answered in time, or given up by the cloud, whose time for it was over"
    )


def source_of(result: Result) -> str | None:
    """Return where a result's score is from: "device", "cloud" or "unanswered"; None where nobody asks."""
    source = (result.value or {}).get("source")
    return None if source is None else str(source)
