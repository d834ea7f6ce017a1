"""Transaction coordinator of one broker: its partitions of ``__transaction_state``, the markers
to write, and queries of other brokers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import TRANSACTION_STATE_TOPIC
from tidemark.tls.dialing import Dialer
from tidemark.tls.identity import TlsIdentity
from tidemark_broker.admission.fair_share import MemoryShares
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.coordinators.coordinator_lookup import CoordinatorFinder
from tidemark_broker.coordinators.coordinators import Coordinators
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import CoordinatorLog
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.replication.partition import ReplicaContext
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import cancel
from tidemark_broker.transactions.broker_connections import Links
from tidemark_broker.transactions.core.markers import Marker, TransactionKey
from tidemark_broker.transactions.core.metadata import (
    EPOCH_BUMP_LEVEL,
    PREPARED,
    Producer,
    TransactionMetadata,
)
from tidemark_broker.transactions.inquiries import Inquiries
from tidemark_broker.transactions.marker_sender import MarkerSender
from tidemark_broker.transactions.shard import ShardContext, TransactionLimits, TransactionShard
from tidemark_broker.transactions.wire import (
    QueryCoordinatorRequest,
    QueryCoordinatorResponse,
    WireInquiry,
    WireMarker,
    WireVerdict,
)

#: Inquiries, each of which may append a record, before the loop is yielded.
_ANSWERED_AT_ONCE = 25


class TransactionCoordinator:
    """Coordinator of one broker. Used from the loop only.

    ``request_topic`` requests the creation of the topic. ``write_markers`` writes to partitions
    that this broker leads.
    """

    def __init__(
        self,
        context: ReplicaContext,
        *,
        limits: TransactionLimits,
        dialer_of: Callable[[int], Dialer],
        request_topic: Callable[[str], None],
        producer_ids: ProducerIds,
        write_markers: Callable[[Sequence[WireMarker]], Awaitable[Sequence[ErrorCode]]],
    ) -> None:
        """Create the coordinator without partitions; leadership changes in ``context`` add them.

        ``dialer_of``: identity that a broker must prove, by its id. ``producer_ids``: source of new
        producer ids. ``write_markers``: writes transaction markers (the control records at the end
        of a transaction) to partitions that this broker leads, and returns an error code for each.
        """
        # One shard for each led partition of __transaction_state.
        self.coordinators: Coordinators[TransactionShard] = Coordinators(
            TRANSACTION_STATE_TOPIC,
            self._shard,
            cluster=context.metadata,
            purgatory=context.purgatory,
            request_topic=request_topic,
            now=context.monotonic,
        )
        # Separate connections: a marker request may take half a second, which would delay
        # inquiries.
        self._links = (
            Links(context.metadata, dialer_of, client_id="transaction markers"),  # [0]
            Links(context.metadata, dialer_of, client_id="transaction inquiries"),  # [1]
        )
        # Sends markers to the leaders of a transaction's partitions until each is written.
        self.markers = MarkerSender(
            node_id=context.node_id,
            cluster=context.metadata,
            links=self._links[0],
            write_here=write_markers,
            finished=self._markers_written,
            now=context.monotonic,
        )
        # As leader of data partitions, this broker queries the coordinators of producers (KIP-890).
        finder = CoordinatorFinder(context.metadata, request_topic)
        self.inquiries = Inquiries(
            node_id=context.node_id,
            links=self._links[1],
            leader_of=partial(finder.leader_of, TRANSACTION_STATE_TOPIC),
            answer_here=self.answer,
        )
        self.shared = ShardContext(
            limits, context, producer_ids, self.markers, MemoryShares(limits.bytes_max)
        )
        context.role_changed.append(self.coordinators.role_changed)

    def _shard(self, log: CoordinatorLog, deadlines: Deadlines[Hashable]) -> TransactionShard:
        return TransactionShard(log, deadlines, self.shared)

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the committed state, None for an unknown id.

        Of a decided transaction only partitions without markers are included. Raises
        :class:`CoordinatorError`.
        """
        shard = self.coordinators.shard_of(transactional_id)
        known = shard.table.get(transactional_id)
        if known is None or known.state not in PREPARED:
            return known
        left = self.markers.queue.left((shard.partition, transactional_id))
        return replace(known, partitions=known.partitions & left)

    def _markers_written(self, key: TransactionKey, marker: Marker) -> None:
        partition, transactional_id = key
        shard = self.coordinators.loaded_shard_at(partition)
        # Without one the next coordinator writes the markers again.
        if shard is not None and shard.log.leader_epoch == marker.coordinator_epoch:
            shard.markers_written(transactional_id, marker)

    # ------------------------------------------------------------ queries of brokers

    async def serve(
        self, request: QueryCoordinatorRequest, peer: TlsIdentity, memory: ResponseMemory
    ) -> QueryCoordinatorResponse:
        """Answer another broker's inquiries."""
        verdicts = await self.answer(request.inquiries)
        return QueryCoordinatorResponse(
            verdicts=tuple(WireVerdict(errors=tuple(map(int, verdict))) for verdict in verdicts)
        )

    async def answer(self, inquiries: Sequence[WireInquiry]) -> Sequence[Sequence[ErrorCode]]:
        """Return the results in the order of the inquiries."""
        tasks: list[asyncio.Task[Sequence[ErrorCode]]] = []
        async with asyncio.TaskGroup() as group:
            for inquiry in inquiries:
                tasks.append(group.create_task(self._answer(inquiry)))
                if len(tasks) % _ANSWERED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return [task.result() for task in tasks]

    async def _answer(self, inquiry: WireInquiry) -> Sequence[ErrorCode]:
        """Answer a partition leader that has received transactional records (KIP-890).

        Returns an error code for each partition of the inquiry, in its order. ``inquiry.adds``:
        partitions that are not in the producer's transaction are added to it. Otherwise they are
        only verified.
        """
        tps = [
            TopicPartition(*pair) for pair in zip(inquiry.topics, inquiry.partitions, strict=True)
        ]
        producer = Producer(inquiry.producer_id, inquiry.producer_epoch)
        try:
            shard = self.coordinators.shard_of(inquiry.transactional_id)
            # Verification only reads, so it is answered without waiting.
            if not inquiry.adds:
                verdict = shard.verify_partitions(
                    inquiry.transactional_id, producer=producer, partitions=set(tps)
                )
                return [verdict[tp] for tp in tps]
            # A transaction with an unknown partition could never end.
            if not all(map(self._is_there, tps)):  # no marker could be written to it
                return [ErrorCode.unknown_topic_or_partition] * len(tps)
            if shard.has_prepared(inquiry.transactional_id):
                # The pending marker voids the leader's guard, so the verification must restart
                # after it is written.
                await shard.settled(inquiry.transactional_id)
                return [ErrorCode.concurrent_transactions] * len(tps)
            error = await shard.add_partitions(
                inquiry.transactional_id,
                producer=producer,
                partitions=set(tps),
                version=EPOCH_BUMP_LEVEL,
            )
        except CoordinatorError as failed:
            error = failed.error_code
        return [error] * len(tps)

    def _is_there(self, tp: TopicPartition) -> bool:
        """Return whether the partition exists here.

        Its leader may know it earlier, but a marker for an unknown partition could not be placed.
        """
        view = self.shared.replicas.metadata.topics.get(tp.topic)
        return view is not None and tp.partition in view.partitions

    async def run(self) -> None:
        """Run the background work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.coordinators.run())
            group.create_task(self.markers.run())

    async def close(self) -> None:
        """Give up all partitions and close the connections."""
        await self.coordinators.close()
        await cancel(self.shared.tasks)
        await self.inquiries.close()
        for links in self._links:
            await links.close()
