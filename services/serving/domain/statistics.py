"""What a version did since the process started: the source of ModelStatistics and of the metrics."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of one execution: putting the inputs together, the model, taking the outputs apart."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass(slots=True)
class Total:
    """How often, and nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count once more."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchTotal:
    """Of the executions of one number of rows."""

    input: Total = field(default_factory=Total)
    infer: Total = field(default_factory=Total)
    output: Total = field(default_factory=Total)


@dataclass(slots=True)
class Statistics:
    """Counts of one version. Used on the event loop alone.

    Attributes:
        refused: requests that weren't taken or waited too long, by reason.
        cancelled: requests whose caller gave up.
        rows: of requests that succeeded.
        last_ms: when the last request succeeded, in milliseconds since 1970.
        seconds: requests that succeeded by time, one more than `BUCKETS_S`.
    """

    success: Total = field(default_factory=Total)
    fail: Total = field(default_factory=Total)
    queue: Total = field(default_factory=Total)
    input: Total = field(default_factory=Total)
    infer: Total = field(default_factory=Total)
    output: Total = field(default_factory=Total)
    refused: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    rows: int = 0
    executions: int = 0
    last_ms: int = 0
    batches: dict[int, BatchTotal] = field(default_factory=dict)
    seconds: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def executed(self, rows: int, timing: Timing) -> None:
        """Count an execution."""
        self.executions += 1
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchTotal()
        batch.input.add(timing.input_ns)
        batch.infer.add(timing.infer_ns)
        batch.output.add(timing.output_ns)

    def succeeded(self, rows: int, queue_ns: int, timing: Timing, total_ns: int, now_ms: int) -> None:
        """Count a request that was answered."""
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.input.add(timing.input_ns)
        self.infer.add(timing.infer_ns)
        self.output.add(timing.output_ns)
        self.rows += rows
        self.last_ms = now_ms
        self.seconds[bisect.bisect_left(BUCKETS_S, total_ns / 1e9)] += 1

    def failed(self, total_ns: int) -> None:
        """Count a request that was taken and couldn't be computed."""
        self.fail.add(total_ns)

    def refuse(self, reason: str) -> None:
        """Count a request that wasn't computed: the queue was full, or it waited too long."""
        self.fail.add(0)
        self.refused[reason] = self.refused.get(reason, 0) + 1
