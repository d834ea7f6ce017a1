"""Work beside the queue of keys: requests to brokers that take their time, decisions on their news."""

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from typing import Any

logger = logging.getLogger(__name__)

TASKS_MAX = 10_000


class BackgroundTasks:
    """Tasks by name, each once at a time. Belongs to the main loop."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def spawn(self, name: Hashable, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work``, unless one of that ``name`` runs already, or too much does: then False.
        What it raises is logged."""
        if name in self._tasks or len(self._tasks) >= TASKS_MAX:
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
