"""Tasks outside the queue of keys: slow requests to brokers, and decisions on their results."""

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from typing import Any

logger = logging.getLogger(__name__)

TASKS_MAX = 10_000


class BackgroundTasks:
    """Named tasks, each at most once at a time; owned by the main loop."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def spawn(self, name: Hashable, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work``; return False if one of that ``name`` runs, or too many tasks do.

        An exception is logged.
        """
        if name in self._tasks or len(self._tasks) >= TASKS_MAX:
            # A coroutine that is never awaited would emit a warning.
            work.close()
            return False
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._ended(name, ended))
        return True

    def _ended(self, name: Hashable, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", name, exc_info=error)

    async def close(self) -> None:
        """Cancel everything and wait for its end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
