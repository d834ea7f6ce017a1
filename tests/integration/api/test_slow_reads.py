"""Decisions while a thread reads for a client: the answer reflects the moment in which it is
sent.
"""

import asyncio
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import NODE, ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark.tiering import Tiering, TieringState
from tidemark_broker.log import reading

T0 = 1_700_000_000_000


class BlockingDisk:
    """A disk without a page cache: reading threads wait until :meth:`turn` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_asked, self._turns = threading.Event(), threading.Event()
        for name in ("read", "offset_by_timestamp"):
            monkeypatch.setattr(reading, name, self._slow(getattr(reading, name)))
        # RWF_NOWAIT reads fail, so every read needs a thread.
        monkeypatch.setattr(os, "preadv", _refuse)

    def _slow(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            self.is_asked.set()
            assert self._turns.wait(10)
            return real(*args, **kwargs)

        return slow

    def turn(self) -> None:
        self._turns.set()


def _refuse(*_: object) -> int:
    raise BlockingIOError


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingDisk]:
    made = BlockingDisk(monkeypatch)
    yield made
    made.turn()


async def _filled(broker: ApiBroker) -> uuid.UUID:
    # Several segments of a few records each.
    topic_id = await broker.create("t", config={"segment.bytes": "300"})
    for number in range(20):
        request = kafka.produce(9, "t", kafka.batch(b"%d" % number))
        await broker.ask(request, kafka.answer_type(0, 9))
    return topic_id


async def _while_reading(
    broker: ApiBroker,
    disk: BlockingDisk,
    request: Any,
    kind: int,
    change: Callable[[], Awaitable[None]],
) -> Any:
    """Return the answer about a partition that ``change`` alters while the disk is read."""
    asking = asyncio.create_task(broker.ask(request, kafka.answer_type(*_VERSIONS[kind])))
    async with asyncio.timeout(10):
        while not disk.is_asked.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)
        # The change happens between the beginning of the read and its end.
        await change()
    disk.turn()
    [answer] = (await asking).responses if kind == _FETCH else (await asking).topics
    [part] = answer.partitions
    return part


_FETCH, _LIST = 1, 2
_VERSIONS = {_FETCH: (1, 12), _LIST: (2, 7)}
REQUESTS = {
    _FETCH: lambda: kafka.fetch(12, "t", 3, part={"current_leader_epoch": 0}),
    _LIST: lambda: kafka.list_offsets(7, "t", T0),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_leadership_lost_during_a_read_fails_the_request(
    broker: ApiBroker, disk: BlockingDisk, kind: int
) -> None:
    topic_id = await _filled(broker)

    async def change() -> None:
        # Another leader is elected while the thread reads.
        await broker.create("t", replicas=(NODE, 2), leader=2, topic_id=topic_id, leader_epoch=1)

    part = await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    if kind == _FETCH:  # of a follower it may be had as well, but not in the name of epoch 0
        assert part.error_code is ErrorCode.fenced_leader_epoch
        assert not part.records
    else:
        assert part.error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("kind", REQUESTS)
async def test_leader_stalled_during_a_read_answers_nothing(
    broker: ApiBroker, disk: BlockingDisk, kind: int
) -> None:
    await _filled(broker)

    async def change() -> None:
        stall = broker.manager.context.stall
        # The loop was blocked for ten seconds with a session of nine.
        since_s = broker.manager.context.monotonic() - 10.0
        stall.limit(registered_s=since_s, lease_s=9.0, loop_max_s=9.0)
        stall.turned(since_s)

    part = await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    assert part.error_code is ErrorCode.not_leader_or_follower


async def test_records_deleted_locally_during_a_read_are_read_from_the_tier(
    broker: ApiBroker, disk: BlockingDisk
) -> None:
    """OFFSET_OUT_OF_RANGE would reset the consumer, which would miss records."""
    await _filled(broker)
    partition = broker.manager.get("t", 0)
    assert partition is not None
    assert partition.stored is not None
    tiering = Tiering(TieringState.ENABLED, 0)
    partition.stored = replace(partition.stored, tiering=tiering)

    async def change() -> None:
        # Local retention deletes offset 3 while it is being read.
        partition.log.bounds = partition.log.bounds.with_local_start(10)

    part = await _while_reading(broker, disk, REQUESTS[_FETCH](), _FETCH, change)
    assert part.error_code is ErrorCode.kafka_storage_error, "there is no tier here to ask"


@pytest.mark.parametrize("kind", REQUESTS)
async def test_replica_removed_during_a_read_leaves_no_failure(
    broker: ApiBroker, disk: BlockingDisk, kind: int
) -> None:
    """Failures are stored by name, so they would affect the next topic of that name."""
    topic_id = await _filled(broker)

    async def change() -> None:
        await broker.delete(topic_id)

    await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    assert broker.manager.context.failures.count == 0
