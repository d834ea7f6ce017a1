"""Query the brokers for the log start and end offsets of the partitions on the screen.

A leader gets five ListOffsets requests and a follower one, regardless of the number of partitions.
If a broker does not answer, the result has a line of text for it, and its offsets are unknown.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9.response import ListOffsetsResponse

from tidemark.error_text import error_text
from tidemark.kafka_client import requests
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.sasl import LoginFailed, log_in
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_cli.inspection.topic_rows import TopicRows
from tidemark_cli.top.pages import shown_rows
from tidemark_cli.top.ranges import PartitionOffsets
from tidemark_operator.controller.state.rows import PartitionRow

CLIENT_ID = "tidemark-top"
#: Replica ids of a consumer and of Kafka's debugging replica, which also followers answer.
_CONSUMER, _DEBUGGING = requests.CONSUMER, -2
_TIMEOUT_S = 3.0
_IN_CLEAR = KafkaAccess(())
#: Listener that is reserved for other brokers.
_REPLICATION = "REPLICATION"
_BROKERS_AT_ONCE = 8
#: Most partitions that one frame queries, over all topics.
PARTITIONS_MAX = 500

Partition = tuple[str, int]
PartitionAnswers = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """Partition to query, with its row."""

    topic: str
    row: PartitionRow

    @property
    def partition(self) -> Partition:
        """Return the topic's name in Kafka and the partition number."""
        return self.topic, self.row.partition


@dataclass(frozen=True, slots=True)
class BrokerOffsets:
    """Offsets from the brokers, and the problems of brokers that did not answer."""

    offsets: Mapping[Partition, PartitionOffsets]
    problems: Mapping[int, str] = field(default_factory=dict)


#: Function with the first two parameters of :func:`query_offsets`.
QueryOffsets = Callable[[Sequence[PartitionQuery], Mapping[int, tuple[str, int]]], BrokerOffsets]


def queries_for(topics: Iterable[TopicRows]) -> list[PartitionQuery]:
    """Return the partitions of the topics that are on the screen."""
    queries = [
        PartitionQuery(topic.kafka_name, row) for topic in topics for row in shown_rows(topic)
    ]
    return queries[:PARTITIONS_MAX]


def addresses(
    brokers: Iterable[Mapping[str, Any]], listener: str = ""
) -> dict[int, tuple[str, int]]:
    """Return host and port of each broker by node ID, as clients reach it.

    ``listener``: name of the listener; "" for the first one for clients. A listener with an
    external endpoint has the advertised address.
    """
    addresses_of = {}
    for body in brokers:
        status = body.get("status") or {}
        outside = {endpoint["name"]: endpoint for endpoint in status.get("externalEndpoints") or ()}
        for registered in status.get("endpoints") or ():
            point = outside.get(registered["name"], registered)
            if point["name"] == listener or (not listener and point["name"] != _REPLICATION):
                addresses_of[int(body["spec"]["nodeId"])] = (str(point["host"]), int(point["port"]))
                break
    return addresses_of


def query_offsets(
    queries: Sequence[PartitionQuery],
    addresses_of: Mapping[int, tuple[str, int]],
    access: KafkaAccess = _IN_CLEAR,
) -> BrokerOffsets:
    """Query the brokers for the offsets of the partitions on the screen. Never raises.

    Leaders return log start, local log start, tier end and high watermark. Followers return their
    log ends, from which the lag follows (:func:`ranges.lag`).
    """
    led, followed = _by_broker(queries)
    # The order of the ListOffsets queries matters while segments are copied and deleted: a range
    # may then appear in two places, but never in none.
    leaders, problems = _query_brokers(led, addresses_of, access, _LEADER_QUERIES)
    # A broker that did not answer as a leader is not queried again as a follower.
    reachable = {node: replicas for node, replicas in followed.items() if node not in problems}
    followers, more = _query_brokers(reachable, addresses_of, access, (_LOG_END_QUERY,))
    problems |= more
    ends: dict[Partition, dict[int, int]] = defaultdict(dict)
    for node, answers in followers.items():
        for partition, end in (answers[0] if answers else {}).items():
            ends[partition][node] = end
    offsets = {}
    for node, answers in leaders.items():
        for partition in led[node]:
            # An incomplete answer cannot place the ranges, so the offsets are unknown.
            if len(answers) == len(_LEADER_QUERIES) and all(
                partition in answer for answer in answers
            ):
                offsets[partition] = _offsets(node, partition, answers, ends[partition])
    return BrokerOffsets(offsets, problems)


_OffsetQuery = tuple[int, int]
_AnswersByBroker = dict[int, list[PartitionAnswers]]
_LOG_END_QUERY = (LATEST, _DEBUGGING)
_LEADER_QUERIES = (
    (EARLIEST, _CONSUMER),
    (EARLIEST_LOCAL, _CONSUMER),
    (LATEST_TIERED, _CONSUMER),
    (LATEST, _CONSUMER),
    _LOG_END_QUERY,
)


def _query_brokers(
    partitions_of: Mapping[int, list[Partition]],
    addresses_of: Mapping[int, tuple[str, int]],
    access: KafkaAccess,
    offset_queries: Sequence[_OffsetQuery],
) -> tuple[_AnswersByBroker, dict[int, str]]:
    """Send the same ListOffsets queries to each broker and return the answers and problems.

    ``partitions_of``: partitions to query by node ID. Both results are by node ID; the answers are
    in the order of ``offset_queries``. Daemon threads are used, so that they do not delay the end
    of the program.
    """
    answers_by_broker: _AnswersByBroker = {}
    problems: dict[int, str] = {}

    # Each thread writes to its own key, so no lock is needed.
    def query_one(node_id: int) -> None:
        at = addresses_of.get(node_id)
        answers, problem = _query_broker(
            node_id, at, access, partitions_of[node_id], offset_queries
        )
        answers_by_broker[node_id] = answers
        if problem:
            problems[node_id] = problem

    nodes = sorted(partitions_of)
    # In batches, so that a large cluster does not start a thread for each broker at once.
    for first in range(0, len(nodes), _BROKERS_AT_ONCE):
        threads = [
            threading.Thread(target=query_one, args=(node,), daemon=True)
            for node in nodes[first : first + _BROKERS_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers_by_broker, problems


def _by_broker(
    queries: Iterable[PartitionQuery],
) -> tuple[dict[int, list[Partition]], dict[int, list[Partition]]]:
    led: dict[int, list[Partition]] = defaultdict(list)
    followed: dict[int, list[Partition]] = defaultdict(list)
    for query in queries:
        if query.row.leader < 0:
            continue
        led[query.row.leader].append(query.partition)
        for replica in query.row.hosts:
            if replica != query.row.leader:
                followed[replica].append(query.partition)
    return led, followed


def _offsets(
    leader: int, partition: Partition, answers: Sequence[PartitionAnswers], ends: Mapping[int, int]
) -> PartitionOffsets:
    start, local, tiered, committed, end = (answer[partition] for answer in answers)
    return PartitionOffsets(
        log_start=start,
        local_start=local,
        tier_end=None if tiered < 0 else tiered + 1,
        high_watermark=committed,
        log_ends={**ends, leader: end},
    )


def _query_broker(
    node_id: int,
    at: tuple[str, int] | None,
    access: KafkaAccess,
    partitions: Sequence[Partition],
    offset_queries: Sequence[_OffsetQuery],
) -> tuple[list[PartitionAnswers], str]:
    """Return a broker's answer to each ListOffsets query, and a problem or "".

    ``at``: host and port, None if unknown. ``offset_queries``: timestamp and replica ID of each.
    """
    # The broker has not registered with this listener.
    if at is None:
        return [], f"broker {node_id} has no known address"
    try:
        # One connection for all questions, as each login costs round trips.
        with BlockingConnection(
            *at, client_id=CLIENT_ID, timeout_s=_TIMEOUT_S, dialer=access.tls
        ) as connection:
            if access.login is not None:
                log_in(connection, access.login, _TIMEOUT_S)
            return [
                _list_offsets(connection, partitions, offset_query)
                for offset_query in offset_queries
            ], ""
    # A failure concerns one broker; the offsets of the others are still shown.
    except (OSError, FrameError, LoginFailed) as error:
        return [], (
            f"broker {node_id} at {at[0]}:{at[1]} is unreachable, so the offsets of its partitions "
            f"are unknown: {error_text(error)}. Choose another listener with --listener, or add "
            "--client-config with the credentials for this one"
        )


def _list_offsets(
    connection: BlockingConnection, partitions: Sequence[Partition], offset_query: _OffsetQuery
) -> PartitionAnswers:
    """Send one ListOffsets request and return the offsets by partition; -1 means none.

    ``offset_query``: the request's timestamp and replica ID. Partitions with an error are left out.
    """
    timestamp, replica_id = offset_query
    # One request for all partitions of this broker. It has no leader epoch: a view need not fence
    # outdated metadata.
    request = requests.list_offsets(dict.fromkeys(partitions, timestamp), replica_id=replica_id)
    answer = connection.request(request, ListOffsetsResponse, _TIMEOUT_S)
    return {
        (str(topic.name), int(part.partition_index)): int(part.offset)
        for topic in answer.topics
        for part in topic.partitions
        # An error, such as a new leader, is shown as unknown until the next update.
        if part.error_code == ErrorCode.none
    }
