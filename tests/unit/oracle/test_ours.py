"""Tidemark's side of the comparison with Kafka, without a socket.

Every request that reads or writes records is answered in every version, and the errors are those
that Kafka's sources name.
"""

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.conformance.oracle.case import FILLED, TOPICS
from tests.conformance.oracle.cases import cases
from tests.conformance.oracle.compare import errors_in
from tests.conformance.oracle.produce_cases import filling
from tests.conformance.oracle.sides import SideWorld
from tests.control_messages import partition_states, topic_state
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import ReplicaNode
from tidemark.wire import control
from tidemark.wire.framing import FrameError, decode_response, encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.serving.dispatcher import APIS, Dispatcher
from tidemark_broker.net.connection import CloseConnection

LISTENER = "PLAINTEXT"
#: Produce, Fetch, ListOffsets, Metadata, OffsetForLeaderEpoch, ACLs, DescribeLogDirs,
#: DescribeClientQuotas, DescribeCluster, DescribeProducers, DescribeTopicPartitions.
KEYS = frozenset({0, 1, 2, 3, 23, 29, 30, 31, 35, 48, 60, 61, 75})
SERVED = {api.key: api.served for api in APIS if api.key in KEYS}
#: All cases except requests to a transaction coordinator.
TABLE = [
    item for item in cases(SERVED) if item.round is None and "transactional_id" not in item.name
]
WORLD = SideWorld(
    topic_ids={name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in TOPICS}, node_id=1
)
#: Errors of Apache Kafka 4.3, by its sources. The key is the name of a case.
ERRORS = {
    "Produce v13 good": "none",
    "Produce v13 empty": "invalid_record",
    "Produce v13 short": "invalid_record",
    "Produce v13 shorter than a magic": "invalid_record",
    "Produce v13 cut": "invalid_record",
    "Produce v13 zeros": "corrupt_message",
    "Produce v13 noise": "corrupt_message",
    "Produce v13 two batches": "invalid_record",
    "Produce v13 bytes behind it": "none",
    "Produce v13 zeros behind it": "corrupt_message",
    "Produce v13 old format": "invalid_record",
    "Produce v13 future format": "corrupt_message",
    "Produce v13 wrong CRC": "corrupt_message",
    "Produce v13 too large": "message_too_large",
    "Produce v13 base offset 1": "invalid_record",
    "Produce v13 no records": "invalid_record",
    "Produce v13 too many records": "invalid_record",
    "Produce v13 last offset delta off": "invalid_record",
    "Produce v13 control": "invalid_record",
    "Produce v13 sequence below zero": "invalid_record",
    "Produce v13 largest timestamp -1": "none",
    "Produce v13 largest timestamp lies": "none",
    "Produce v13 timestamp far ahead": "invalid_timestamp",
    "Produce v13 timestamp below -1": "none",
    "Produce v13 log append time": "invalid_timestamp",
    "Produce v13 poison, value too long": "invalid_record",
    "Produce v13 poison, varint without end": "invalid_record",
    "Produce v13 zstd": "none",
    "Produce v6 zstd": "unsupported_compression_type",
    "Produce v13 keyless to a compacted topic": "invalid_record",
    "Produce v13 unknown topic": "unknown_topic_id",
    "Produce v12 unknown topic": "unknown_topic_or_partition",
    "Produce v13 acks 2": "invalid_required_acks",
    "Fetch v18 from the start": "none",
    "Fetch v18 in the middle": "none",
    "Fetch v18 past the end": "offset_out_of_range",
    "Fetch v18 below zero": "offset_out_of_range",
    "Fetch v18 unknown topic": "unknown_topic_id",
    "Fetch v12 unknown topic": "unknown_topic_or_partition",
    "Fetch v18 max bytes 0": "none",
    "Fetch v18 max bytes -1": "unknown_server_error",
    "Fetch v18 partition max bytes -1": "unknown_server_error",
    "Fetch v18 leader epoch 1000": "unknown_leader_epoch",
    "Fetch v18 last fetched epoch 1000 at 2": "offset_out_of_range",
    "Fetch v18 to debug": "none",
    "Fetch v18 plain: topics.partitions.current_leader_epoch -2": "none",
    "Metadata v13 plain: topics.topic_id nobody's": "unknown_topic_id",
    "Metadata v11 plain: topics.topic_id nobody's": "invalid_request",
    "CreateAcls v3 plain": "security_disabled",
    "DeleteAcls v3 plain": "security_disabled",
    "DescribeAcls v3 plain": "security_disabled",
    "DescribeClientQuotas v1 of planet 0 x": "unsupported_version",
    "DescribeClientQuotas v1 of user 0 None": "invalid_request",
    "DescribeClientQuotas v1 of one twice": "invalid_request",
    "DescribeClientQuotas v1 plain: components.entity_type empty": "invalid_request",
    "DescribeClientQuotas v1 plain: components.match_type 1": "invalid_request",
    "DescribeCluster v2 plain: endpoint_type 0": "unsupported_endpoint_type",
    "DescribeProducers v0 plain: topics.name unknown": "unknown_topic_or_partition",
    "DescribeProducers v0 plain: topics.name with a blank": "invalid_topic_exception",
    "ListOffsets v11 -1 of oracle-read": "none",
    "ListOffsets v10 -6 of oracle-read": "unsupported_version",
    "ListOffsets v11 -7 of oracle-read": "unsupported_version",
    "ListOffsets v11 -1 of nope": "unknown_topic_or_partition",
    "ListOffsets v11 in leader epoch 1000": "unknown_leader_epoch",
    "OffsetForLeaderEpoch v4 0 in 1000": "unknown_leader_epoch",
    "DescribeLogDirs v5 of oracle-read": "none",
}
SESSIONS = {
    "Fetch v18 session id 0, epoch 0": "none",
    "Fetch v18 session id 0, epoch -1": "none",
    "Fetch v18 session id 0, epoch 5": "fetch_session_id_not_found",
    "Fetch v18 session id 0, epoch -2": "fetch_session_id_not_found",
    "Fetch v18 session unknown id, epoch 0": "none",
    "Fetch v18 session unknown id, epoch -1": "none",
    "Fetch v18 session unknown id, epoch 1": "fetch_session_id_not_found",
}


class TidemarkSide:
    """A broker's handlers over real replicas."""

    def __init__(self, node: ReplicaNode) -> None:
        shared = services(
            node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
        )
        self.dispatcher = Dispatcher(shared)
        self.client = Client("10.0.0.1:1", LISTENER)

    async def ask(self, frame: bytes, api_key: int, version: int) -> Any:
        """Return the answer, None if there is none, or "closed" if the connection ends."""
        try:
            pieces = await self.dispatcher.serve(frame[4:], room(), self.client)
        except (FrameError, CloseConnection):
            return "closed"
        if pieces is None:
            return None
        return decode_response(kafka.answer_type(api_key, version), b"".join(pieces)[4:])[1]


@pytest.fixture
async def side(tmp_path: Path) -> Any:
    """Run a broker that leads the table's topics; the one that is read has three records."""
    node = ReplicaNode(1, tmp_path)
    endpoint = control.Endpoint(name=LISTENER, host="127.0.0.1", port=9)
    topics = [
        topic_state(
            WORLD.topic_ids[name],
            name,
            config=tuple(control.ConfigEntry(name=k, value=v) for k, v in config.items()),
            partitions=tuple(
                control.PartitionState(
                    partition=number, leader=1, leader_epoch=0, partition_epoch=0,
                    replicas=(1,), isr=(1,), manifest=False,
                )
                for number in range(partitions)
            ),
        )
        for name, (partitions, config) in TOPICS.items()
    ]  # fmt: skip
    row = control.BrokerState(
        broker_id=1, broker_epoch=1, rack=None, fenced=False, listeners=(endpoint,)
    )
    assert await node.manager.apply(partition_states(*topics, full=True, brokers=(row,))) == []
    made = TidemarkSide(node)
    # The topics that are read get their records through the same handlers.
    for topic in FILLED:
        answer = await made.ask(encode_request(filling(topic)(WORLD, 9), 1, "t"), 0, 9)
        assert set(errors_in(answer)) == {ErrorCode.none}
    yield made
    await node.stop()


async def test_every_request_is_answered(side: TidemarkSide) -> None:
    """A request that cannot be read may end the connection instead."""
    for case in TABLE:
        answer = await side.ask(case.frame(WORLD), case.api_key, case.version)
        # A request that was cut may still be readable, so that both results are right.
        is_cut = case.api == "Frame" or case.name.endswith((", cut", " and a byte"))
        if re.search(r"acks 0|^Produce v\d+ blank", case.name):  # acks 0 as well
            assert answer in (None, "closed"), case.name
        elif not is_cut:
            assert answer not in (None, "closed"), case.name


@pytest.mark.parametrize("name", [*ERRORS, *SESSIONS])
async def test_error_matches_kafka(side: TidemarkSide, name: str) -> None:
    (case,) = [item for item in TABLE if item.name == name]
    answer = await side.ask(case.frame(WORLD), case.api_key, case.version)
    found = [item.name for item in errors_in(answer) if item is not ErrorCode.none]
    expected = ERRORS.get(name) or SESSIONS[name]
    assert found[:1] == ([] if expected == "none" else [expected])
