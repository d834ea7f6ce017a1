"""What only brokers know: where the logs of the partitions that are shown begin and end.

Five questions (ListOffsets) to a broker that leads, one to a broker that follows, whatever the
number of partitions; of these only the ones on the screen are asked for. A broker that does not
answer is a line of text, and what it would have told is not known.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import request as offsets_request
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from tidemark.error_text import error_text
from tidemark.kafka_client.access import Access
from tidemark.kafka_client.sasl import LoginFailed, log_in
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_cli.local.topic_rows import TopicRows
from tidemark_cli.top.pages import shown_rows
from tidemark_cli.top.ranges import Offsets
from tidemark_operator.controller.model import PartitionRow
from tidemark_pipeline.positions import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED

CLIENT_ID = "tidemark-top"
#: A consumer, and Kafka's debugging replica: who is told of the log's end, by followers as well.
_CONSUMER, _DEBUGGING = -1, -2
_TIMEOUT_S = 3.0
_IN_CLEAR = Access(())
#: The listener that is for other brokers alone.
_REPLICATION = "REPLICATION"
_BROKERS_AT_ONCE = 8
#: Partitions that are asked for in one frame, of all topics together.
PARTITIONS_MAX = 500

Partition = tuple[str, int]
Answers = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A partition that is asked for, by its row."""

    topic: str
    row: PartitionRow

    @property
    def partition(self) -> Partition:
        """The topic's name in Kafka, and the number."""
        return self.topic, self.row.partition


@dataclass(frozen=True, slots=True)
class Figures:
    """What was told, and what could not be reached."""

    told: Mapping[Partition, Offsets]
    problems: tuple[str, ...] = ()


def asked_of(topics: Iterable[TopicRows]) -> list[Asked]:
    """The partitions that are shown of some topics."""
    found = [Asked(topic.kafka_name, row) for topic in topics for row in shown_rows(topic)]
    return found[:PARTITIONS_MAX]


def addresses(
    brokers: Iterable[Mapping[str, Any]], listener: str = ""
) -> dict[int, tuple[str, int]]:
    """Where brokers are reached, by node id: at the listener that is named, else the first for
    clients; at one that leads outside, by the address that clients are told."""
    found = {}
    for body in brokers:
        status = body.get("status") or {}
        outside = {each["name"]: each for each in status.get("externalEndpoints") or ()}
        for registered in status.get("endpoints") or ():
            point = outside.get(registered["name"], registered)
            if point["name"] == listener or (not listener and point["name"] != _REPLICATION):
                found[int(body["spec"]["nodeId"])] = (str(point["host"]), int(point["port"]))
                break
    return found


def ask(
    asked: Sequence[Asked], reached_at: Mapping[int, tuple[str, int]], access: Access = _IN_CLEAR
) -> Figures:
    """Ask the leaders, then the followers: see :func:`ranges.lag`. Never raises."""
    led, followed = _by_broker(asked)
    # Whatever is copied or goes meanwhile: a range is in two places rather than in none.
    leaders, problems = _ask_brokers(led, reached_at, access, _OF_A_LEADER)
    left = {node: each for node, each in followed.items() if node not in problems}
    followers, more = _ask_brokers(left, reached_at, access, (_END,))
    problems |= more
    ends: dict[Partition, dict[int, int]] = defaultdict(dict)
    for node, answers in followers.items():
        for partition, end in (answers[0] if answers else {}).items():
            ends[partition][node] = end
    told = {}
    for node, answers in leaders.items():
        for partition in led[node]:
            if len(answers) == len(_OF_A_LEADER) and all(partition in each for each in answers):
                told[partition] = _offsets(node, partition, answers, ends[partition])
    return Figures(told, tuple(problems[node] for node in sorted(problems)))


_Question = tuple[int, int]
_Told = dict[int, list[Answers]]
_END = (LATEST, _DEBUGGING)
_OF_A_LEADER = (
    (EARLIEST, _CONSUMER),
    (EARLIEST_LOCAL, _CONSUMER),
    (LATEST_TIERED, _CONSUMER),
    (LATEST, _CONSUMER),
    _END,
)


def _ask_brokers(
    whom: Mapping[int, list[Partition]],
    reached_at: Mapping[int, tuple[str, int]],
    access: Access,
    questions: Sequence[_Question],
) -> tuple[_Told, dict[int, str]]:
    """Some at a time, in threads that nobody waits for who ends the program."""
    told: _Told = {}
    problems: dict[int, str] = {}

    def one(node_id: int) -> None:
        at = reached_at.get(node_id)
        answers, problem = _ask_broker(node_id, at, access, whom[node_id], questions)
        told[node_id] = answers
        if problem:
            problems[node_id] = problem

    nodes = sorted(whom)
    for first in range(0, len(nodes), _BROKERS_AT_ONCE):
        threads = [
            threading.Thread(target=one, args=(node,), daemon=True)
            for node in nodes[first : first + _BROKERS_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return told, problems


def _by_broker(
    asked: Iterable[Asked],
) -> tuple[dict[int, list[Partition]], dict[int, list[Partition]]]:
    led: dict[int, list[Partition]] = defaultdict(list)
    followed: dict[int, list[Partition]] = defaultdict(list)
    for each in asked:
        if each.row.leader < 0:
            continue
        led[each.row.leader].append(each.partition)
        for replica in each.row.hosts:
            if replica != each.row.leader:
                followed[replica].append(each.partition)
    return led, followed


def _offsets(
    leader: int, partition: Partition, answers: Sequence[Answers], ends: Mapping[int, int]
) -> Offsets:
    start, local, tiered, committed, end = (each[partition] for each in answers)
    return Offsets(
        log_start=start,
        local_start=local,
        tier_end=None if tiered < 0 else tiered + 1,
        high_watermark=committed,
        log_ends={**ends, leader: end},
    )


def _ask_broker(
    node_id: int,
    at: tuple[str, int] | None,
    access: Access,
    partitions: Sequence[Partition],
    questions: Sequence[_Question],
) -> tuple[list[Answers], str]:
    """The answer to each question, and what went wrong."""
    if at is None:
        return [], f"broker {node_id} has not said where it is reached"
    try:
        with BlockingConnection(
            *at, client_id=CLIENT_ID, timeout_s=_TIMEOUT_S, dialer=access.tls
        ) as connection:
            if access.login is not None:
                log_in(connection, access.login, _TIMEOUT_S)
            return [_list_offsets(connection, partitions, each) for each in questions], ""
    except (OSError, FrameError, LoginFailed) as error:
        return [], (
            f"broker {node_id} at {at[0]}:{at[1]} is not reached, so offsets of its partitions are "
            f"not known: {error_text(error)}. --listener names another of its "
            "listeners, --client-config a file that says how to get in there"
        )


def _list_offsets(
    connection: BlockingConnection, partitions: Sequence[Partition], question: _Question
) -> Answers:
    """-1 is Kafka's "none"; a partition for which there is an error is left out."""
    timestamp, replica_id = question
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        by_topic[topic].append(number)
    request = offsets_request.ListOffsetsRequest(
        replica_id=BrokerId(replica_id),
        isolation_level=i8(0),
        topics=tuple(
            offsets_request.ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    offsets_request.ListOffsetsPartition(
                        partition_index=i32(number),
                        current_leader_epoch=i32(-1),
                        timestamp=i64(timestamp),
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic.items()
        ),
    )
    answer = connection.request(request, ListOffsetsResponse, _TIMEOUT_S)
    return {
        (str(topic.name), int(part.partition_index)): int(part.offset)
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code == ErrorCode.none
    }
