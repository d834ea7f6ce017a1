"""Fetch on a Reader, a broker without replicas (``Broker.spec.role``).

A Reader serves what only the tier has, after the partition's leader has confirmed it
(:mod:`read_confirmations`). The leader answers everything else, errors included: the Reader names
it as the preferred read replica (KIP-392).
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark.tier.metadata.head import HeadPosition
from tidemark.tiering import Tiering
from tidemark.wire import control
from tidemark_broker.api.fetch_session import PartitionRequest
from tidemark_broker.api.read_confirmations import ColdRead, ColdReadAnswer
from tidemark_broker.api.records.fetch_remote import keep_to_limits
from tidemark_broker.api.records.fetch_response import Read
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable
from tidemark_broker.replication.types import (
    FetchResult,
    RemoteFetchNeed,
    TopicIdPartition,
    TopicPartition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPartition:
    """Partition without a replica here, for reads of the tier."""

    tp: TopicPartition
    topic_id: uuid.UUID
    tiering: Tiering
    log_start_offset: int
    tier_position: HeadPosition | None

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.tp.partition

    @property
    def key(self) -> TopicIdPartition:
        """Topic id and number."""
        return self.topic_id, self.tp.partition


@dataclass(slots=True)
class _Candidate:
    """Read that may be served here, with the leader's last answer about its partition."""

    read: Read
    view: TopicMetadata
    row: control.PartitionState
    max_bytes: int
    answer: ColdReadAnswer

    @property
    def need(self) -> RemoteFetchNeed:
        """The read of the tier."""
        return RemoteFetchNeed(offset=self.read.request.offset, max_bytes=self.max_bytes)

    @property
    def is_cold(self) -> bool:
        """Whether the leader would read the offset from the tier, by its last answer."""
        start, end = self.answer.log_start_offset, self.answer.local_log_start_offset
        return self.answer.is_cold and start <= self.read.request.offset < end

    @property
    def question(self) -> tuple[int, ColdRead]:
        """The leader's id, and the read that it may confirm."""
        request = self.read.request
        return self.row.leader, ColdRead(
            topic_id=self.view.topic_id,
            partition=self.row.partition,
            current_leader_epoch=request.current_leader_epoch,
            offset=request.offset,
            last_fetched_epoch=request.last_fetched_epoch,
        )

    def to_leader(self) -> FetchResult:
        """Redirect the consumer to the leader, which decides about the offset."""
        result = self.offsets()
        if self.row.leader < 0:
            return result._replace(error=ErrorCode.not_leader_or_follower)
        return result._replace(preferred_read_replica=self.row.leader)

    def offsets(self) -> FetchResult:
        """Return a result without records that has the offsets of the last answer."""
        return FetchResult(
            error=ErrorCode.none,
            high_watermark=self.answer.high_watermark,
            last_stable_offset=self.answer.last_stable_offset,
            log_start_offset=self.answer.log_start_offset,
            leader_id=self.row.leader,
            leader_epoch=self.row.leader_epoch,
        )


async def read_from_tier(
    requests: Sequence[PartitionRequest], call: Call, max_bytes: int, client_deadline_s: float
) -> list[Read]:
    """Read partitions from the tier, and redirect the consumers of all others to their leaders.

    ``max_bytes``: limit of all records. The first batch of the response is returned whole, as in
    :mod:`fetch`. ``client_deadline_s``: monotonic time until which the client waits.
    """
    services = call.services
    located = await call.time_slice.collect(_located(request, services) for request in requests)
    candidates = [item for item in located if isinstance(item, _Candidate)]
    # An offset that was not cold may have become so since the leader's last answer.
    await _ask([item for item in candidates if not item.is_cold], services)
    cold = _chosen(candidates, max_bytes)
    wait_s = services.settings.remote_wait_ms / 1000
    deadline_s = max(time.monotonic() + wait_s, client_deadline_s)
    await asyncio.gather(*(_fill(item, services, deadline_s) for item in cold))
    # Only now the leader decides, because records may have been deleted during the reads.
    found = [item for item in cold if item.read.result.data]
    await _ask(found, services)
    for candidate in found:
        records = candidate.read.result
        candidate.read.result = (
            candidate.offsets()._replace(data=records.data, aborted=records.aborted)
            if candidate.is_cold
            else candidate.to_leader()
        )
    # Each read returns at least one whole batch, so together they may exceed the limit.
    reads = [item.read if isinstance(item, _Candidate) else item for item in located]
    keep_to_limits(reads, [(item.read, item.need) for item in cold])
    return reads


def _chosen(candidates: Sequence[_Candidate], max_bytes: int) -> list[_Candidate]:
    """Return the candidates to read, which may have ``max_bytes`` together; answer the others."""
    left, cold = max_bytes, list[_Candidate]()
    for candidate in candidates:
        if not candidate.is_cold:
            candidate.read.result = candidate.to_leader()
        elif cold and left <= 0:
            candidate.read.result = candidate.offsets()
        else:
            candidate.max_bytes = max(min(candidate.read.request.max_bytes, left), 1)
            left -= candidate.max_bytes
            cold.append(candidate)
    return cold


async def _ask(candidates: Sequence[_Candidate], services: HandlerServices) -> None:
    """Replace the answers of the candidates by new ones of their leaders."""
    if candidates:
        questions = [item.question for item in candidates]
        answers = await services.confirmations.confirm(questions)
        for candidate, answer in zip(candidates, answers, strict=True):
            candidate.answer = answer


def _located(request: PartitionRequest, services: HandlerServices) -> "Read | _Candidate":
    """Return a partition that may be read here, or one that is answered with an error."""
    if request.error is not ErrorCode.none:
        return Read(request, None, FetchResult(error=request.error))
    view = services.cluster.topics.get(request.topic)
    row = None if view is None else view.partitions.get(request.partition)
    # Checks in the order of fetch: existence, then the topic id.
    if view is None or row is None:
        return Read(request, None, FetchResult(error=ErrorCode.unknown_topic_or_partition))
    if request.topic_id not in (None, view.topic_id):
        return Read(request, None, FetchResult(error=ErrorCode.inconsistent_topic_id))
    read = Read(request, None, FetchResult(error=ErrorCode.none))
    known = services.confirmations.last((view.topic_id, row.partition))
    return _Candidate(read, view, row, request.max_bytes, known)


async def _fill(candidate: _Candidate, services: HandlerServices, deadline_s: float) -> None:
    """Read one partition from the tier until the monotonic time ``deadline_s``."""
    read, remote, answer = candidate.read, services.replicas.remote, candidate.answer
    source = TierPartition(
        tp=TopicPartition(candidate.view.name, candidate.row.partition),
        topic_id=candidate.view.topic_id,
        tiering=candidate.view.tiering,
        log_start_offset=answer.log_start_offset,
        tier_position=answer.head,
    )
    read.result = candidate.offsets()
    if remote is None:
        read.result = candidate.to_leader()
        return
    try:
        found = await remote.read(source, read.request.offset, candidate.max_bytes, deadline_s)
    # The result has no error, so the client fetches the partition again.
    except TimeoutError:
        return
    # The failure may be this broker's own, and the leader reports damage.
    except (RemoteOffsetOutOfRange, RemoteUnavailable):
        read.result = candidate.to_leader()
        return
    read.result = read.result._replace(data=found.data, aborted=found.aborted)
