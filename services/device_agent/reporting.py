"""Stage reports: queued durably where they arise, handed over in batches until the cloud has them."""

import logging
from functools import partial

from isthmus.deployer.v1 import pull_pb2
from libs.common.clock import Clock
from libs.common.errors import Error, Invalid
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud
from services.device_agent.convert import to_timestamp
from services.device_agent.signals import Bell, Problems
from services.device_agent.store import versions as version_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.versions import Report
from services.device_agent.tasks import Tasks

_log = logging.getLogger("isthmus.agent")

_BATCH = 256
_SUBJECT = "reports"


class Reporter:
    """Hands reports over.

    Attributes:
        bell: rings when there may be reports.
    """

    def __init__(
        self,
        database: Database,
        tasks: Tasks,
        cloud: Cloud,
        clock: Clock,
        problems: Problems,
        backoff: Backoff,
        bell: Bell,
    ) -> None:
        self.bell = bell
        self._database = database
        self._tasks = tasks
        self._cloud = cloud
        self._clock = clock
        self._problems = problems
        self._backoff = backoff
        self._told: list[str] | None = None

    async def run(self) -> None:
        """Hand over whatever is queued, and each change of the profile."""
        attempt = 0
        while True:
            seen = self.bell.rings
            try:
                while await self.flush():
                    pass
            except Error as error:
                self._problems.set(_SUBJECT, error.message, error.reason)
                await self._clock.sleep(self._backoff.delay_s(attempt, error))
                attempt += 1
                continue
            attempt = 0
            self._problems.clear(_SUBJECT)
            await self.bell.wait(seen)

    async def flush(self) -> bool:
        """Hand over one batch; return whether there was anything to say.

        Raises:
            Error: what the call failed with; the reports stay queued.
        """
        read = await self._database.run(lambda connection: version_store.read_reports(connection, _BATCH))
        profile = self._tasks.profile
        reports = [report for report in read if await self._sendable(report)]
        if read and not reports:
            return True
        # The first profile goes with the first plan.
        if not reports and self._told in (None, profile):
            self._told = profile
            return False
        try:
            await self._send(reports, profile)
        except Invalid:
            # If the profile alone goes through, a report is at fault: the others must not wait behind it.
            await self._send([], profile)
            await self._send_each(reports, profile)
        self._told = profile
        await self._delete(reports)
        return True

    async def _sendable(self, report: Report) -> bool:
        """Tell whether a report makes a message; one that doesn't is dropped, the others must not wait."""
        try:
            _to_proto(report)
        except BAD_ROW as error:
            await self._database.run(
                partial(version_store.drop_report, report_id=report.report_id, error=error)
            )
            return False
        return True

    async def _send_each(self, reports: list[Report], profile: list[str]) -> None:
        for report in reports:
            try:
                await self._send([report], profile)
            except Invalid as error:
                _log.error(
                    "the cloud refuses the report %s of %s@%s, it is dropped: %s",
                    report.stage,
                    report.task,
                    report.version,
                    error.message,
                )

    async def _send(self, reports: list[Report], profile: list[str]) -> None:
        await self._cloud.report(
            pull_pb2.ReportRequest(reports=[_to_proto(report) for report in reports], profile=profile)
        )

    async def _delete(self, reports: list[Report]) -> None:
        ids = [report.report_id for report in reports]
        if ids:
            await self._database.run(lambda connection: version_store.delete_reports(connection, ids))


def _to_proto(report: Report) -> pull_pb2.StageReport:
    return pull_pb2.StageReport(
        report_id=report.report_id,
        task=report.task,
        version=report.version,
        release=report.release,
        stage=pull_pb2.StageReport.Stage.Value(f"STAGE_{report.stage}"),
        event_time=to_timestamp(report.event_time_s),
        failure_reason=report.failure_reason,
        failure_message=report.failure_message,
    )
