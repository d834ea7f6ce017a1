"""Kafka client without an event loop, for Spark's drivers and executors.

It differs from :class:`~tidemark.kafka_client.client.KafkaClient`, which the operator uses: it
sends one request at a time, retries by itself, and also reads records. Requests, addresses, login
and errors are the same.

It keeps one connection to each leader across requests. Metadata is refreshed when a request fails.
Transient failures are retried a bounded number of times: broken connections, and the errors that
Kafka calls retriable. A rejected login, an untrusted certificate or a missing ACL fails at once.
"""

import contextlib
import datetime
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseTopic
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tidemark.backoff import Backoff
from tidemark.kafka_client import requests
from tidemark.kafka_client.access import BrokerAddress, KafkaAccess, parse_address
from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.kafka_client.sasl import LoginFailed, log_in
from tidemark.kafka_client.values import LATEST
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError

R = TypeVar("R")
V = TypeVar("V")
P_co = TypeVar("P_co", covariant=True)
CLIENT_ID = "tidemark-pipeline"
_TRIES_MAX = 20
_RETRY = Backoff(first_s=0.25, most_s=2.0)
_TIMEOUT_S = 30.0
#: Shorter than the client's timeout, so that the broker's answer arrives before that.
_DELETE_TIMEOUT_MS = int((_TIMEOUT_S - 10) * 1000)
_FETCH_BYTES_MAX = 8 * 1024 * 1024
_FRAME_BYTES_MAX = 256 * 1024 * 1024


class OutOfRange(ValueError):
    """The offset is no longer (or not yet) in the log."""


class _TopicResult(Protocol[P_co]):
    """A topic of an answer."""

    @property
    def partitions(self) -> Sequence[P_co]: ...


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Address of a partition's leader, and its epoch."""

    address: BrokerAddress
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic as brokers know it. ``topic_id`` is None with brokers that have no ids."""

    name: str
    topic_id: uuid.UUID | None
    partitions: int
    internal: bool


class StableLogEnd(NamedTuple):
    """The last stable offset of a partition, and the epoch of the leader that reported it."""

    offset: int
    leader_epoch: int


class EpochEndAnswer(NamedTuple):
    """End of the records of an epoch and of lower epochs. ``offset`` None: the log has no later
    epoch. ``leader_epoch``: of the leader that reported it."""

    offset: int | None
    leader_epoch: int


class FetchedBatches(NamedTuple):
    """Raw batches, and the aborted transactions with records in them: producer id, first offset."""

    data: bytes
    aborted: tuple[tuple[int, int], ...]


class BlockingKafkaClient:
    """Client that sends requests to the leaders. Not thread-safe; close it after use."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._connections: dict[BrokerAddress, BlockingConnection] = {}
        # Leaders are cached until a request fails; their epochs fence outdated entries.
        self._leaders: dict[tuple[str, int], PartitionLeader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the client opens new ones when it is used again."""
        while self._connections:
            self._connections.popitem()[1].close()

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicSummary]:
        """Return the existing topics among ``names``; all topics without names.

        Raises :class:`Unreachable`, :class:`ClusterRefused`.
        """
        response = self._retry(lambda: self._metadata(names))
        return {
            str(topic.name): TopicSummary(
                str(topic.name), topic.topic_id, len(topic.partitions), topic.is_internal
            )
            for topic in response.topics
            if topic.name is not None and not topic.error_code
        }

    def list_offsets(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, int]:
        """Return the offset of a timestamp (ms, or a special one) by partition; -1: none.

        It uses ListOffsets. The latest offset is the last stable one.

        Raises :class:`Unreachable`, :class:`ClusterRefused`.
        """
        answers = self._ask_leaders(topic, timestamps, self._list_offsets)
        return {partition: answer.offset for partition, answer in answers.items()}

    def log_ends(self, topic: str, partitions: Iterable[int]) -> dict[int, StableLogEnd]:
        """Return the last stable offset of each partition, with the epoch of the leader that
        reported it.

        Raises :class:`Unreachable`, :class:`ClusterRefused`.
        """
        return self._ask_leaders(topic, dict.fromkeys(partitions, LATEST), self._list_offsets)

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> dict[int, EpochEndAnswer]:
        """Return the end offset of a leader epoch by partition (OffsetForLeaderEpoch, KIP-320).

        ``epochs``: the epoch to look up by partition. Raises :class:`Unreachable`,
        :class:`ClusterRefused`.
        """
        return self._ask_leaders(topic, epochs, self._epoch_ends)

    def fetch(self, topic: str, partition: int, offset: int) -> FetchedBatches:
        """Return committed batches from the one that contains ``offset``.

        Empty if no record was written there within two seconds.

        Raises :class:`OutOfRange`, :class:`Unreachable`, :class:`ClusterRefused`.
        """
        return self._retry(lambda: self._fetch(topic, partition, offset))

    def delete_records(self, topic: str, below: Mapping[int, int]) -> dict[int, int]:
        """Delete all records below these offsets (DeleteRecords).

        Returns the low watermark of each partition, the smallest log start of its live replicas.
        After a failure, some partitions may have been deleted.

        Raises :class:`Unreachable`, :class:`ClusterRefused`.
        """
        # DeleteRecords is idempotent, so a retry is safe.
        return self._ask_leaders(topic, below, self._delete_records)

    def _ask_leaders(
        self,
        topic: str,
        wanted: Mapping[int, V],
        ask: Callable[[BrokerAddress, str, Mapping[int, V]], Mapping[int, R]],
    ) -> dict[int, R]:
        """Send a request to the leader of each partition and return the answers by partition.

        ``wanted``: argument of the request by partition. ``ask``: sends it to one leader.
        """
        answers: dict[int, R] = {}

        # A retry only requests the partitions that have no answer yet.
        def ask_remaining() -> None:
            remaining = [partition for partition in wanted if partition not in answers]
            for address, partitions in self._by_leader(topic, remaining).items():
                answers.update(ask(address, topic, {part: wanted[part] for part in partitions}))

        self._retry(ask_remaining)
        return answers

    def _retry(self, call: Callable[[], R]) -> R:
        """Return the result of ``call``, which is repeated after transient failures.

        Raises :class:`Unreachable` after the last attempt, and :class:`ClusterRefused` at
        once for errors that a retry cannot fix.
        """
        reason = ""
        for failures in range(1, _TRIES_MAX + 1):
            try:
                return call()
            # A wrong certificate or password stays wrong, so these errors end the retries.
            except ssl.SSLCertVerificationError as error:
                raise ClusterRefused(f"a broker's certificate is not trusted: {error}") from error
            except LoginFailed as error:
                raise ClusterRefused(str(error)) from error
            except FrameError as error:
                raise ClusterRefused(
                    f"what answers does not speak Kafka as we do: {error}"
                ) from error
            except (OSError, Unreachable) as error:
                # Everything is reset: the next try reads new metadata over new connections.
                reason = str(error)
                self.close()
                self._leaders.clear()
                if failures < _TRIES_MAX:
                    time.sleep(_RETRY.pause_s(failures))
        raise Unreachable(f"gave up after {_TRIES_MAX} tries: {reason}")

    def _metadata(self, names: Sequence[str] | None) -> MetadataResponse:
        """Send a Metadata request for topics (None: all) and update the cached leaders.

        A topic that does not exist is in the response with its error code. Raises for other errors.
        """
        response = self._request_any(requests.metadata(names), MetadataResponse)
        addresses = {int(b.node_id): BrokerAddress(b.host, int(b.port)) for b in response.brokers}
        for topic in response.topics:
            # The callers compare the returned names, so an unknown topic is no error here.
            if topic.error_code != ErrorCode.unknown_topic_or_partition:
                _check(topic.error_code, str(topic.name))
            self._leaders.update(_leaders_of(topic, addresses))
        return response

    def _request_any(self, request: object, response_type: type[R]) -> R:
        """Send a request that any broker can answer, over an open connection if there is one.

        Otherwise the bootstrap addresses are tried in order. Raises :class:`Unreachable`.
        """
        # An open connection saves a handshake, and its broker was reachable before.
        for address in tuple(self._connections):
            with self._closed_on_error(address):
                return self._connections[address].request(request, response_type, _TIMEOUT_S)
        reason = "no bootstrap address was given"
        for text in self._access.bootstrap:
            try:
                return self._request(parse_address(text), request, response_type)
            # It is a subclass of OSError, but it is not retried with another broker: the user must
            # fix the trust store.
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                reason = f"{text}: {error}"
        raise Unreachable(f"no broker answered; the last one said: {reason}")

    def _request(self, address: BrokerAddress, request: Any, response_type: type[R]) -> R:
        with self._closed_on_error(address):
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = self._connect(address)
            return connection.request(request, response_type, _TIMEOUT_S)

    def _connect(self, address: BrokerAddress) -> BlockingConnection:
        """Return a new connection to a broker, authenticated if the access has a login."""
        connection = BlockingConnection(
            *address,
            client_id=CLIENT_ID,
            timeout_s=_TIMEOUT_S,
            frame_bytes_max=_FRAME_BYTES_MAX,
            dialer=self._access.tls,
        )
        try:
            if self._access.login is not None:
                log_in(connection, self._access.login, _TIMEOUT_S)
        # The socket must not leak if the login fails.
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _closed_on_error(self, address: BrokerAddress) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # After an error, unread bytes of the old response may follow; the connection is
            # unusable.
            connection = self._connections.pop(address, None)
            if connection is not None:
                connection.close()
            raise

    def _leader(self, topic: str, partition: int) -> PartitionLeader:
        if (topic, partition) not in self._leaders:
            self._metadata([topic])
        leader = self._leaders.get((topic, partition))
        if leader is None:
            raise Unreachable(f"{topic}-{partition} has no leader")
        return leader

    def _leader_epochs(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {part: self._leader(topic, part).leader_epoch for part in partitions}

    def _by_leader(self, topic: str, partitions: Sequence[int]) -> dict[BrokerAddress, list[int]]:
        by_leader: dict[BrokerAddress, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(self._leader(topic, partition).address, []).append(partition)
        return by_leader

    def _list_offsets(
        self, address: BrokerAddress, topic: str, timestamps: Mapping[int, int]
    ) -> dict[int, StableLogEnd]:
        """Send ListOffsets to one leader and return the offsets by partition; -1: none."""
        # The request contains the leader epoch from the metadata, so that a former leader refuses
        # it (KIP-320).
        epochs = self._leader_epochs(topic, timestamps)
        request = requests.list_offsets(
            {(topic, partition): at for partition, at in timestamps.items()},
            committed=True,
            leader_epochs={(topic, partition): epoch for partition, epoch in epochs.items()},
        )
        response = self._request(address, request, ListOffsetsResponse)
        results = (
            (int(result.partition_index), result.error_code, int(result.offset))
            for topic_result in response.topics
            for result in topic_result.partitions
        )
        offsets = _all_answers(topic, timestamps, results)
        return {part: StableLogEnd(offset, epochs[part]) for part, offset in offsets.items()}

    def _epoch_ends(
        self, address: BrokerAddress, topic: str, epochs: Mapping[int, int]
    ) -> dict[int, EpochEndAnswer]:
        """Send OffsetForLeaderEpoch (KIP-320) to one leader and return the answers by partition."""
        # The request contains the current leader epoch, so that a former leader refuses it.
        leaders = self._leader_epochs(topic, epochs)
        request = epoch_request.OffsetForLeaderEpochRequest(
            replica_id=BrokerId(requests.CONSUMER),
            topics=(
                epoch_request.OffsetForLeaderTopic(
                    topic=TopicName(topic),
                    partitions=tuple(
                        epoch_request.OffsetForLeaderPartition(
                            partition=i32(partition),
                            current_leader_epoch=i32(leaders[partition]),
                            leader_epoch=i32(epoch),
                        )
                        for partition, epoch in epochs.items()
                    ),
                ),
            ),
        )
        response = self._request(address, request, OffsetForLeaderEpochResponse)
        results = (
            (int(result.partition), result.error_code, int(result.end_offset))
            for topic_result in response.topics
            for result in topic_result.partitions
        )
        # A negative end offset means that the log has no later epoch.
        return {
            part: EpochEndAnswer(None if end < 0 else end, leaders[part])
            for part, end in _all_answers(topic, epochs, results).items()
        }

    def _delete_records(
        self, address: BrokerAddress, topic: str, below: Mapping[int, int]
    ) -> dict[int, int]:
        """Send DeleteRecords (KIP-107) to one leader and return the low watermarks by partition.

        ``below``: offset by partition; records below it are deleted.
        """
        # A broker answers when all live replicas have deleted the records, or after the timeout.
        request = requests.delete_records(
            {(topic, partition): offset for partition, offset in below.items()}, _DELETE_TIMEOUT_MS
        )
        response = self._request(address, request, DeleteRecordsResponse)
        results = (
            (int(result.partition_index), result.error_code, int(result.low_watermark))
            for topic_result in response.topics
            for result in topic_result.partitions
        )
        return _all_answers(topic, below, results)

    def _fetch(self, topic: str, partition: int, offset: int) -> FetchedBatches:
        """Send one Fetch request (read_committed) to a partition's leader and return its batches.

        Raises :class:`OutOfRange` if the log does not contain ``offset``.
        """
        leader = self._leader(topic, partition)
        # The broker waits up to two seconds for the first byte. Both size limits are equal, as
        # there is only one partition.
        request = fetch_request.FetchRequest(
            max_wait=i32Timedelta.parse(datetime.timedelta(seconds=2)),
            min_bytes=i32(1),
            max_bytes=i32(_FETCH_BYTES_MAX),
            isolation_level=requests.COMMITTED,
            topics=(
                fetch_request.FetchTopic(
                    topic=TopicName(topic),
                    partitions=(
                        fetch_request.FetchPartition(
                            partition=i32(partition),
                            current_leader_epoch=i32(leader.leader_epoch),
                            fetch_offset=i64(offset),
                            partition_max_bytes=i32(_FETCH_BYTES_MAX),
                        ),
                    ),
                ),
            ),
            forgotten_topics_data=(),
        )
        response = self._request(leader.address, request, FetchResponse)
        name = f"{topic}-{partition}"
        # An error of the whole session comes before those of the partition.
        _check(response.error_code, name)
        result = only_partition(response.responses, name)
        # A separate exception: the caller decides whether expired records are an error.
        if result.error_code == ErrorCode.offset_out_of_range:
            raise OutOfRange(f"{name}: offset {offset} is no longer in the log")
        _check(result.error_code, name)
        # Batches of aborted transactions are included; the decoder skips them.
        aborted = tuple(
            (int(transaction.producer_id), int(transaction.first_offset))
            for transaction in result.aborted_transactions or ()
        )
        return FetchedBatches(bytes(result.records or b""), aborted)


def only_partition(topics: Sequence[_TopicResult[R]], name: str) -> R:
    """Return the requested partition of an answer; raises Unreachable if it is missing."""
    for topic in topics:
        for partition in topic.partitions:
            return partition
    raise Unreachable(f"{name}: the leader's answer is empty")


def _leaders_of(
    topic: MetadataResponseTopic, addresses: Mapping[int, BrokerAddress]
) -> dict[tuple[str, int], PartitionLeader]:
    return {
        (str(topic.name), int(p.partition_index)): PartitionLeader(
            addresses[int(p.leader_id)], int(p.leader_epoch)
        )
        for p in topic.partitions
        if int(p.leader_id) in addresses
    }


def _all_answers(
    topic: str, wanted: Mapping[int, object], results: Iterable[tuple[int, ErrorCode, R]]
) -> dict[int, R]:
    """Return the results of one leader by partition.

    The first error is raised: the retry reads metadata again and repeats the whole request.
    """
    answers: dict[int, R] = {}
    for partition, error, value in results:
        _check(error, f"{topic}-{partition}")
        answers[partition] = value
    if answers.keys() != wanted.keys():
        raise Unreachable(f"{topic}: the leader's response lacks requested partitions")
    return answers


def _check(error: ErrorCode, name: str) -> None:
    if error == ErrorCode.none:
        return
    if error.retriable:
        raise Unreachable(f"{name}: the leader answered {error.name}")
    raise ClusterRefused(f"{name}: the broker answered {error.name}")
