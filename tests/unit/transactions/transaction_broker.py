"""One broker without sockets that serves transactions: its requests are Kafka's, in any version."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.groups.members import SETTINGS
from tests.unit.replication.replica_nodes import ReplicaNode, dialer_of, row
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.serving.dispatcher import Dispatcher
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.log import PartitionLog
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.security.user_store import UserStore
from tidemark_broker.transactions.coordinator import TransactionCoordinator
from tidemark_broker.transactions.marker_writer import MarkerWriter
from tidemark_broker.transactions.shard import TransactionLimits

R = TypeVar("R")
PRODUCE, INIT, ADD, OFFSETS, END, MARKERS, DESCRIBE, LIST = 0, 22, 24, 25, 26, 27, 65, 66
COMMIT_OFFSETS, FETCH_OFFSETS = 28, 9
DATA = "data"
ID = "copier"
T0 = 1_700_000_000_000


class TransactionBroker:
    """Broker that leads the partitions of the tests.

    These are ``data``-0 and -1, ``__transaction_state``-0 and, as the only replica,
    ``__consumer_offsets``-0.
    """

    def __init__(self, folder: Path) -> None:
        self.node = ReplicaNode(1, folder)
        self.users = UserStore()
        self.producer_ids = ProducerIds()
        context = self.node.context
        # Pauses between two attempts to write a marker are real time.
        context.monotonic = time.monotonic
        self.groups = GroupCoordinator(
            SETTINGS,
            cluster=context.metadata,
            purgatory=context.purgatory,
            request_topic=lambda name: None,
            clock=lambda: Now(self.node.now_s, T0),
        )
        context.role_changed.append(self.groups.coordinators.role_changed)
        self.marker_writer = MarkerWriter(self.node.manager, {GROUP_OFFSETS_TOPIC: self.groups})
        self.transactions = TransactionCoordinator(
            context,
            limits=TransactionLimits(
                timeout_max_ms=900_000, expiration_ms=10_000_000, bytes_max=10_000_000
            ),
            dialer_of=dialer_of,
            request_topic=lambda name: None,
            producer_ids=self.producer_ids,
            write_markers=self.marker_writer.write,
        )
        self._dispatcher = Dispatcher(
            services(
                context.metadata,
                replicas=self.node.manager,
                purgatory=context.purgatory,
                users=self.users,
                producer_ids=self.producer_ids,
                groups=self.groups,
                transactions=self.transactions,
                marker_writer=self.marker_writer,
            )
        )

    async def lead(
        self,
        isr: tuple[int, ...] = (1,),
        partition_epoch: int = 1,
        partitions: int = 2,
        offsets_isr: tuple[int, ...] = (1,),
    ) -> None:
        """Apply the partitions' leadership, and wait until both coordinators have loaded.

        ``isr`` is of the first two partitions of data. The others are led elsewhere.
        ``offsets_isr`` is of ``__consumer_offsets``-0.
        """
        alone: dict[str, Any] = {"leader_epoch": 1, "partition_epoch": partition_epoch}
        data = [
            row(
                partition=number, leader_epoch=1, partition_epoch=partition_epoch,
                replicas=(1, 2), isr=isr,
            )
            for number in (0, 1)
        ]  # fmt: skip
        data += [
            row(partition=number, leader=2, replicas=(2,), isr=(2,))
            for number in range(2, partitions)
        ]
        await self.node.manager.apply(
            partition_states(
                topic_state(uuid.UUID(int=1), DATA, partitions=tuple(data)),
                *(
                    topic_state(
                        uuid.UUID(int=number),
                        name,
                        partitions=(row(isr=replicas, replicas=replicas, **alone),),
                    )
                    for number, name, replicas in (
                        (2, TRANSACTION_STATE_TOPIC, (1,)),
                        (3, GROUP_OFFSETS_TOPIC, offsets_isr),
                    )
                ),
            )
        )
        await until(
            lambda: (
                not self.transactions.coordinators.loading and not self.groups.coordinators.loading
            )
        )

    async def ask(self, key: int, version: int, principal: str = "User:ann", **values: Any) -> Any:
        """Return the answer to a request."""
        answer = await self.serve(frame(key, version, **values), principal)
        return decode_response(kafka.answer_type(key, version), answer[4:])[1]

    async def serve(self, request: bytes, principal: str = "User:ann") -> bytes:
        """Serve a request and return the answer's frame."""
        client = Client("10.0.0.1:1", "PLAINTEXT", self.users, principal=principal)
        pieces = await self._dispatcher.serve(request, room(), client)
        assert pieces is not None
        return b"".join(pieces)

    async def init(self, version: int = 4, **values: Any) -> Any:
        given: dict[str, Any] = {
            "transactional_id": ID, "transaction_timeout": kafka.duration(60_000),
            "producer_id": -1, "producer_epoch": -1, "enable2_pc": False,
            "keep_prepared_txn": False,
        }  # fmt: skip
        return await self.ask(INIT, version, **(given | values))

    async def add(
        self, producer_id: int, epoch: int, *partitions: int, version: int = 3, topic: str = DATA
    ) -> list[ErrorCode]:
        """Send AddPartitionsToTxn as a producer does and return the errors."""
        named = kafka.nested(
            ADD, version, "AddPartitionsToTxnTopic", name=topic, partitions=partitions
        )
        answer = await self.ask(
            ADD, version,
            v3_and_below_transactional_id=ID, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch, v3_and_below_topics=(named,),
        )  # fmt: skip
        (found,) = answer.results_by_topic_v3_and_below
        return [result.partition_error_code for result in found.results_by_partition]

    async def end(
        self, producer_id: int, epoch: int, *, commit: bool = True, version: int = 3
    ) -> Any:
        return await self.ask(
            END, version, transactional_id=ID, producer_id=producer_id, producer_epoch=epoch,
            committed=commit,
        )  # fmt: skip

    async def produce(
        self, version: int, records: bytes, *, partition: int = 0, transactional_id: str | None = ID
    ) -> ErrorCode:
        data = kafka.nested(
            PRODUCE, version, "PartitionProduceData", index=partition, records=records
        )
        topic = kafka.nested(
            PRODUCE, version, "TopicProduceData", name=DATA, partition_data=(data,)
        )
        answer = await self.ask(
            PRODUCE, version, transactional_id=transactional_id, acks=-1,
            timeout=kafka.duration(1000), topic_data=(topic,),
        )  # fmt: skip
        return answer.responses[0].partition_responses[0].error_code  # type: ignore[no-any-return]

    async def commit_offset(
        self, version: int, offset: int, epoch: int = 0, *, partition: int = 0, group: str = "g"
    ) -> ErrorCode:
        """Send TxnOffsetCommit of a group, without a member."""
        part = kafka.nested(
            COMMIT_OFFSETS, version, "TxnOffsetCommitRequestPartition", partition_index=partition,
            committed_offset=offset, committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        topic = kafka.nested(
            COMMIT_OFFSETS, version, "TxnOffsetCommitRequestTopic", name=DATA, partitions=(part,)
        )
        answer = await self.ask(
            COMMIT_OFFSETS, version, transactional_id=ID, group_id=group, producer_id=1000,
            producer_epoch=epoch, generation_id=-1, member_id="", group_instance_id=None,
            topics=(topic,),
        )  # fmt: skip
        return answer.topics[0].partitions[0].error_code  # type: ignore[no-any-return]

    async def committed_offset(self, *, stable: bool = False) -> int | ErrorCode:
        """Return the committed offset of ``data``-0."""
        topic = kafka.nested(
            FETCH_OFFSETS, 7, "OffsetFetchRequestTopic", name=DATA, partition_indexes=(0,)
        )
        answer = await self.ask(
            FETCH_OFFSETS, 7, group_id="g", topics=(topic,), require_stable=stable
        )
        (part,) = answer.topics[0].partitions
        return part.error_code or part.committed_offset  # type: ignore[no-any-return]

    def log(self, partition: int = 0) -> PartitionLog:
        found = self.node.manager.get(DATA, partition)
        assert found is not None
        return found.log

    async def ended(self, next_offset: int, partition: int = 0) -> None:
        """Wait until every offset below ``next_offset`` is stable."""
        await until(lambda: self.log(partition).last_stable_offset == next_offset)


def frame(key: int, version: int, **values: Any) -> bytes:
    """Return the frame of a request without its length."""
    return encode_request(kafka.request(key, version, **values), 7, "tests")[4:]


def records(producer_id: int, epoch: int, sequence: int = 0) -> bytes:
    """Return one record of a transaction."""
    return build_batch(
        [Record(b"k", b"v", (), T0)], producer_id=producer_id, producer_epoch=epoch,
        base_sequence=sequence, is_transactional=True,
    )  # fmt: skip


async def until(look: Callable[[], object]) -> None:
    for _ in range(400):
        if look():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition does not become true within 2 s")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[TransactionBroker]:
    """Run a broker that leads and has producer ids from 1000 on."""
    made = TransactionBroker(folder)
    await made.producer_ids.add(1000, 1000)
    tasks = [asyncio.create_task(made.transactions.run()), asyncio.create_task(made.groups.run())]
    try:
        await made.lead()
        yield made
    finally:
        await made.transactions.close()
        await made.groups.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.node.stop()
