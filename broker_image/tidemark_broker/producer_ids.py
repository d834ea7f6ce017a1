"""Producer ids of this broker: taken from blocks that the controller hands out (KIP-730).

The first block is asked for as the broker starts and the next one before the present one is used
up: clients seldom wait, and new ones find ids while there is no controller. What is left of a block
when the broker ends is never used. Producers with a transactional id are given theirs by the
transaction coordinator; here is only how it is asked.
"""

import asyncio
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

#: With so few ids left the next block is asked for.
_FEW = 100


class ProducerIds:
    """Belongs to the loop. ``wanted`` is set while a block is to be asked for."""

    def __init__(self) -> None:
        self._ids = range(0)
        self._following = range(0)
        self._arrived = asyncio.Condition()
        self.wanted = asyncio.Event()
        self.wanted.set()

    async def next_id(self, timeout_s: float) -> int | None:
        """An id that nobody has; None where no block came in time (Kafka answers
        COORDINATOR_LOAD_IN_PROGRESS then, upon which clients try again)."""
        if not self._has_one():
            self.wanted.set()
            try:
                async with asyncio.timeout(timeout_s), self._arrived:
                    await self._arrived.wait_for(self._has_one)
            except TimeoutError:
                return None
        found, self._ids = self._ids[0], self._ids[1:]
        if len(self._ids) < _FEW and not self._following:
            self.wanted.set()
        return found

    async def add(self, first: int, count: int) -> None:
        """The controller has given that block."""
        self.wanted.clear()
        async with self._arrived:
            self._following = range(first, first + count)
            self._arrived.notify_all()

    def _has_one(self) -> bool:
        if not self._ids:
            self._ids, self._following = self._following, range(0)
        return bool(self._ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTransactionalId:
    """InitProducerId with a transactional id. ``producer_id`` and ``producer_epoch``: who the
    producer thinks it is, -1 for nobody (KIP-360); the last two are KIP-939's."""

    transactional_id: str
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable_2pc: bool = False
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """Who the producer is; -1 with an error."""

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_producer_id: int = -1
    ongoing_producer_epoch: int = -1
