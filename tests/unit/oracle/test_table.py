"""The comparison with Apache Kafka, as far as it needs no broker: that the table can be sent, what
counts as the same, and what is explained."""

import uuid
from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.conformance.oracle import on_purpose
from tests.conformance.oracle.cases import READ, SINK, TOPICS, Case, cases
from tests.conformance.oracle.normal import differences, normal
from tests.conformance.oracle.sides import World
from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import FrameError, decode_request
from tidemark_broker.api import api_versions
from tidemark_broker.api.dispatcher import APIS

SERVED = {api.key: range(api.version_min, api.version_max + 1) for api in APIS}
BY_KEY = {api.key: api for api in (*APIS, api_versions.api_of({}))}
WORLD = World(
    topic_ids={name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in TOPICS},
    node_id=3,
    leader_epoch=5,
)
TABLE = cases(SERVED)


def test_no_two_cases_have_one_name() -> None:
    twice = [name for name, times in Counter(case.name for case in TABLE).items() if times > 1]
    assert twice == []


def test_every_api_and_version_is_asked() -> None:
    asked = {(case.api_key, case.version) for case in TABLE}
    left_out = {17, 27, 36}
    wanted = {
        (key, version)
        for key, versions in SERVED.items()
        for version in versions
        if key not in left_out
    }
    assert wanted <= asked


def test_what_is_sent_can_be_read_unless_it_is_meant_not_to_be() -> None:
    for case in TABLE:
        if case.name.endswith(("blank, cut", "blank and a byte")):
            continue
        request_type = BY_KEY[case.api_key].request_type(case.version)
        try:
            decode_request(request_type, case.frame(WORLD)[4:])
        except FrameError as error:
            pytest.fail(f"{case.name}: {error}")


@pytest.mark.parametrize("what", ["Produce v13 good", "Fetch v18 from the start"])
def test_ids_are_those_of_the_side_that_is_asked(what: str) -> None:
    (case,) = [case for case in TABLE if case.name == what]
    topic = SINK if case.api_key == kafka.PRODUCE else READ
    assert WORLD.topic_ids[topic].bytes in case.frame(WORLD)


def read(**fields: Any) -> Any:
    part = kafka.answer_part(
        kafka.FETCH,
        12,
        "PartitionData",
        **{
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "high_watermark": 3,
            "last_stable_offset": 3,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"",
            **fields,
        },
    )
    topic = kafka.answer_part(
        kafka.FETCH, 12, "FetchableTopicResponse", topic="t", partitions=(part,)
    )
    return kafka.fit(
        kafka.answer_type(kafka.FETCH, 12),
        throttle_time=kafka.duration(7),
        error_code=ErrorCode.none,
        session_id=fields.get("session_id", 0),
        responses=(topic,),
    )


def told(one: Any, other: Any) -> list[str]:
    return [path for path, _, _ in differences(normal(one, WORLD), normal(other, WORLD))]


def test_what_is_the_same() -> None:
    assert told(read(), read()) == []
    first = kafka.batch(b"a")
    led = first[:12] + b"\x00\x00\x00\x09" + first[16:]
    assert told(read(records=first * 2), read(records=led * 2)) == []
    assert told(read(session_id=5), read(session_id=99)) == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"high_watermark": -1}, "responses[].partitions[].high_watermark"),
        ({"error_code": ErrorCode.offset_out_of_range}, "responses[].partitions[].error_code"),
        ({"aborted_transactions": ()}, "responses[].partitions[].aborted_transactions"),
        ({"records": kafka.batch(b"a")}, "responses[].partitions[].records"),
        ({"session_id": 5}, "session_id"),
    ],
    ids=["a number", "an error", "null and empty", "records", "a session"],
)
def test_what_is_not_the_same(fields: dict[str, Any], path: str) -> None:
    assert told(read(**fields), read()) == [path]


def test_a_missing_answer_is_a_difference() -> None:
    assert list(differences("closed", {"a": 1})) == [("", "closed", {"a": 1})]
    assert list(differences([1], [1, 2])) == [("", [1], [1, 2])]


def test_nodes_and_epochs_are_those_of_the_side() -> None:
    answer = kafka.answer_part(
        kafka.METADATA,
        12,
        "MetadataResponsePartition",
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=3,
        leader_epoch=5,
        replica_nodes=(3,),
        isr_nodes=(3, 4),
        offline_replicas=(),
    )
    found = normal(answer, WORLD)
    assert (found["leader_id"], found["leader_epoch"]) == ("<node>", "<epoch>")
    assert (found["replica_nodes"], found["isr_nodes"]) == (["<node>"], ["<node>", 4])


def test_every_line_of_the_list_is_about_a_case_that_is_sent() -> None:
    """And it has a reason."""
    for line in on_purpose.ON_PURPOSE:
        assert len(line.reason) > 20
        names = [case.name for case in (*TABLE, ALL_VERSIONS)]
        assert any(line.explains(name, "responses.api_keys.features") for name in names), line


ALL_VERSIONS = Case("ApiVersions v3 blank", 18, 3, lambda _: b"")
