"""Results for apps, from the store, as they appear."""

from collections.abc import AsyncIterator

from services.device_agent.signals import Bell
from services.device_agent.store import runs as run_store
from services.device_agent.store.database import Database
from services.device_agent.store.runs import Result

_PAGE = 100


class Results:
    """Reads results in pages, so that a slow reader holds nothing but its place."""

    def __init__(self, database: Database, bell: Bell) -> None:
        self._database = database
        self._bell = bell

    async def watch(self, task: str, after: int, *, follow: bool) -> AsyncIterator[Result]:
        """Yield the results after a sequence, of one task or all (""); without `follow` end at the newest."""
        while True:
            seen = self._bell.rings
            page = await self._page(after, task)
            for result in page:
                after = result.sequence
                yield result
            if len(page) == _PAGE:
                continue
            if not follow:
                return
            await self._bell.wait(seen)

    async def _page(self, after: int, task: str) -> list[Result]:
        return await self._database.run(
            lambda connection: run_store.read_results(connection, after, task, _PAGE), durable=False
        )
