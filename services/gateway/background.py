"""Work beside the calls: started here, and over when the gateway is."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


class Background:
    """Tasks that `background` waits for and cancels."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task. Should it fail, the whole block does."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Run tasks beside the block and cancel them when it ends.

    Raises:
        ExceptionGroup: when a task failed. What the block raises comes out as it is.
    """
    raised: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = Background(group)
        try:
            yield tasks
        except Exception as error:
            raised = error
        finally:
            tasks.cancel()
    if raised is not None:
        raise raised
