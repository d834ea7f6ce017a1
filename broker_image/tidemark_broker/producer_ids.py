"""Producer ids of this broker, taken from blocks that the controller allocates (KIP-730).

The first block is requested at the start and the next one before the current one is used up.
Clients therefore seldom wait, and new producers get ids while there is no controller. Unused ids of
a block are lost when the broker ends. Producers with a transactional id get theirs from the
transaction coordinator.
"""

import asyncio

#: The next block is requested when fewer ids than this are left.
_FEW = 100


class ProducerIds:
    """The current and the next block of ids.

    ``block_needed`` is set while a block should be requested.

    Used from the event loop only.
    """

    def __init__(self) -> None:
        #: Unused ids of the current block.
        self._ids = range(0)
        #: The next block, empty until the controller has allocated it.
        self._following = range(0)
        self._arrived = asyncio.Condition()
        self.block_needed = asyncio.Event()
        self.block_needed.set()

    async def next_id(self, timeout_s: float) -> int | None:
        """Return an unused producer id, or None if no block arrived within ``timeout_s`` seconds.

        Kafka answers COORDINATOR_LOAD_IN_PROGRESS in that case, and clients retry.
        """
        if not self._has_one():
            self.block_needed.set()
            try:
                async with asyncio.timeout(timeout_s), self._arrived:
                    await self._arrived.wait_for(self._has_one)
            except TimeoutError:
                return None
        found, self._ids = self._ids[0], self._ids[1:]
        # Requested early, so that the next producers do not wait for the controller.
        if len(self._ids) < _FEW and not self._following:
            self.block_needed.set()
        return found

    async def add(self, first: int, count: int) -> None:
        """Add a block of ids that the controller has allocated."""
        self.block_needed.clear()
        async with self._arrived:
            # Only one block is outstanding at a time, so this never replaces an unused one.
            self._following = range(first, first + count)
            self._arrived.notify_all()

    def _has_one(self) -> bool:
        if not self._ids:
            self._ids, self._following = self._following, range(0)
        return bool(self._ids)
