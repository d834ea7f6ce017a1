"""Partitions of a decided transaction that still need their marker, by a broker's metadata."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states, topic_state
from tests.unit.replication.replica_nodes import row
from tidemark.wire import control
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.broker_connections import Links
from tidemark_broker.transactions.core.markers import Marker, TransactionKey
from tidemark_broker.transactions.marker_sender import MarkerSender
from tidemark_broker.transactions.wire import WireMarker

KEY = (0, "copier")
MARKER = Marker(producer_id=1, producer_epoch=5, coordinator_epoch=3, commit=True, version=2)
DATA, LATER = uuid.UUID(int=1), uuid.UUID(int=2)
HOURS_S = 4 * 3600.0


class SenderBench:
    """The sender of broker 1, which leads its own partitions; broker 2 is down."""

    def __init__(self) -> None:
        self.cluster = MetadataCache("c")
        self.now_s = 0.0
        self.written: list[tuple[str, int]] = []
        self.finished: list[TransactionKey] = []
        self.sender = MarkerSender(
            node_id=1,
            cluster=self.cluster,
            links=cast("Links", None),
            write_here=self._write,
            finished=lambda key, marker: self.finished.append(key),
            now=lambda: self.now_s,
        )

    async def _write(self, markers: Sequence[WireMarker]) -> Sequence[ErrorCode]:
        self.written += [(marker.topic, marker.partition) for marker in markers]
        return [ErrorCode.none] * len(markers)

    def apply_states(self, *topics: control.TopicState, full: bool = True, **fields: Any) -> None:
        self.cluster.apply(partition_states(*topics, full=full, **fields))

    async def pass_hours(self) -> None:
        """Let hours pass, so that everything that waits is retried."""
        # Each of the 40 steps is longer than the longest pause between two attempts.
        for _ in range(40):
            self.now_s += HOURS_S / 40
            self.sender.add((9, "other"), MARKER, [])  # wakes it
            await asyncio.sleep(0.002)
        # Transactions without partitions only wake the sender, and are finished at once.
        self.finished = [key for key in self.finished if key == KEY]


@asynccontextmanager
async def world() -> AsyncIterator[SenderBench]:
    made = SenderBench()
    running = asyncio.create_task(made.sender.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def data(*leaders: int, count: int = -1) -> control.TopicState:
    """Return the topic with one partition for each leader; -1 is a partition in doubt."""
    rows = tuple(row(partition=number, leader=leader) for number, leader in enumerate(leaders))
    return topic_state(DATA, "data", partitions=rows, partition_count=count)


async def test_a_partition_in_doubt_gets_its_marker_when_its_broker_is_back() -> None:
    """A backup of etcd is restored while the only broker that knows data-1 is down."""
    async with world() as made:
        made.apply_states(data(1, -1), knows_all=True)
        made.sender.add(KEY, MARKER, [TopicPartition("data", 0), TopicPartition("data", 1)])
        await made.pass_hours()
        # The restored controller knows that there are two partitions, but only the first one's
        # state.
        made.apply_states(data(1, count=2))
        await made.pass_hours()
        assert (made.written, made.finished) == ([("data", 0)], [])
        # The broker has returned, and its partition has a leader again.
        made.apply_states(data(1, 1))
        await made.pass_hours()
        assert (made.written, made.finished) == ([("data", 0), ("data", 1)], [KEY])


@pytest.mark.parametrize("known", [True, False])
async def test_a_partition_added_after_the_backup_gets_its_marker(known: bool) -> None:
    """This broker knew the partition before the restore, or has become the coordinator since."""
    async with world() as made:
        if known:
            made.apply_states(data(1, -1))
        made.apply_states(data(1, count=1))
        made.sender.add(KEY, MARKER, [TopicPartition("data", 1)])
        await made.pass_hours()
        assert (made.written, made.finished) == ([], [])
        made.apply_states(data(1, 1))
        await made.pass_hours()
        assert (made.written, made.finished) == ([("data", 1)], [KEY])


async def test_a_topic_created_after_the_backup_gets_its_marker_once_it_is_adopted() -> None:
    async with world() as made:
        made.apply_states(data(1), topic_state(LATER, "later", partitions=(row(leader=-1),)))
        made.sender.add(KEY, MARKER, [TopicPartition("later", 0)])
        # The restored backup does not contain the topic.
        made.apply_states(data(1))
        await made.pass_hours()
        # A broker has reported the topic's files. The topic may still be adopted.
        unserved_topic = control.UnservedTopic(name="later", topic_id=LATER, is_unmanaged=True)
        made.apply_states(data(1), knows_all=True, unserved=(unserved_topic,))
        await made.pass_hours()
        assert (made.written, made.finished) == ([], [])
        made.apply_states(data(1), topic_state(LATER, "later", partitions=(row(),)), knows_all=True)
        await made.pass_hours()
        assert (made.written, made.finished) == ([("later", 0)], [KEY])


@pytest.mark.parametrize("has_tombstone", [True, False])
async def test_deleted_topic_does_not_block_its_transaction(has_tombstone: bool) -> None:
    """The tombstone arrives here, or the topic was deleted before this broker registered."""
    async with world() as made:
        made.apply_states(data(1, -1))
        made.sender.add(KEY, MARKER, [TopicPartition("data", 1)])
        if has_tombstone:
            removal = control.Removal(topic_id=DATA, partition=-1, partition_epoch=0)
            made.apply_states(full=False, removals=(removal,))
        else:
            made.apply_states()
            await made.pass_hours()
            # A controller that does not know all topics may only have lost the topic.
            assert made.finished == []
            made.apply_states(full=False, knows_all=True)
        await made.pass_hours()
        assert (made.written, made.finished) == ([], [KEY])
