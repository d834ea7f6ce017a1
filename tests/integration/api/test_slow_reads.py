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
from tidemark_broker.log import PartitionLog

T0 = 1_700_000_000_000


class Disk:
    """Nothing is in memory, and threads that read for clients wait for :meth:`turn`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_asked, self._turns = threading.Event(), threading.Event()
        for name in ("read", "offset_by_timestamp"):
            monkeypatch.setattr(PartitionLog, name, self._slow(getattr(PartitionLog, name)))
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
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.turn()


async def _filled(broker: ApiBroker) -> uuid.UUID:
    topic_id = await broker.create("t", config={"segment.bytes": "300"})
    for number in range(20):
        request = kafka.produce(9, "t", kafka.batch(b"%d" % number))
        await broker.ask(request, kafka.answer_type(0, 9))
    return topic_id


async def _while_reading(
    broker: ApiBroker, disk: Disk, request: Any, kind: int, change: Callable[[], Awaitable[None]]
) -> Any:
    """The answer about the partition of which ``change`` changes something while the disk is
    read."""
    asking = asyncio.create_task(broker.ask(request, kafka.answer_type(*_VERSIONS[kind])))
    async with asyncio.timeout(10):
        while not disk.is_asked.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)
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
async def test_who_leads_no_more_when_the_disk_has_answered_says_so(
    broker: ApiBroker, disk: Disk, kind: int
) -> None:
    topic_id = await _filled(broker)

    async def change() -> None:
        await broker.create("t", replicas=(NODE, 2), leader=2, topic_id=topic_id, leader_epoch=1)

    part = await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    if kind == _FETCH:  # of a follower it may be had as well, but not in the name of epoch 0
        assert part.error_code is ErrorCode.fenced_leader_epoch
        assert not part.records
    else:
        assert part.error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_leader_that_stood_still_while_the_disk_was_read_answers_nothing(
    broker: ApiBroker, disk: Disk, kind: int
) -> None:
    await _filled(broker)

    async def change() -> None:
        stall = broker.manager.context.stall
        stall.session_of(9.0)
        stall.turned(broker.manager.context.monotonic() - 10.0)

    part = await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    assert part.error_code is ErrorCode.not_leader_or_follower


async def test_what_local_retention_let_go_of_meanwhile_is_looked_for_in_the_tier(
    broker: ApiBroker, disk: Disk
) -> None:
    """OFFSET_OUT_OF_RANGE would reset the consumer, which would miss records."""
    await _filled(broker)
    partition = broker.manager.get("t", 0)
    assert partition is not None
    assert partition.stored is not None
    tiering = Tiering(TieringState.ENABLED, 0)
    partition.stored = replace(partition.stored, tiering=tiering)

    async def change() -> None:
        assert partition.log.raise_local_log_start(10)

    part = await _while_reading(broker, disk, REQUESTS[_FETCH](), _FETCH, change)
    assert part.error_code is ErrorCode.kafka_storage_error, "there is no tier here to ask"


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_replica_that_is_removed_meanwhile_leaves_no_failure_behind(
    broker: ApiBroker, disk: Disk, kind: int
) -> None:
    """Failures go by name: it would be the next topic's of that name, or stay for ever."""
    topic_id = await _filled(broker)

    async def change() -> None:
        await broker.delete(topic_id)

    await _while_reading(broker, disk, REQUESTS[kind](), kind, change)
    assert broker.manager.context.failures.count == 0
