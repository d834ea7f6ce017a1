"""The comparison with Apache Kafka, as far as it needs no broker."""

import dataclasses
import fnmatch
import uuid
from collections import Counter
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.conformance.oracle import intended_differences
from tests.conformance.oracle.case import READ, SINK, TOPICS
from tests.conformance.oracle.cases import cases, some
from tests.conformance.oracle.entities import Here, request
from tests.conformance.oracle.response_normalization import differences, normal
from tests.conformance.oracle.sides import SideWorld
from tests.conformance.oracle.valid_requests import GOOD, Good
from tests.conformance.oracle.variations import variations
from tests.unit.api import api_requests as kafka
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import FrameError, decode_request
from tidemark_broker.api.cluster import api_versions
from tidemark_broker.api.serving.dispatcher import APIS

SERVED = {api.key: api.served for api in APIS} | {18: range(5)}
BY_KEY = {api.key: api for api in (*APIS, api_versions.api_of({}))}
WORLD = SideWorld(
    topic_ids={name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in TOPICS},
    node_id=3,
    leader_epoch=5,
)
TABLE = cases(SERVED)


def test_no_two_cases_have_one_name() -> None:
    twice = [name for name, times in Counter(case.name for case in TABLE).items() if times > 1]
    assert twice == []


def test_every_api_and_version_is_requested() -> None:
    requested = {(case.api_key, case.version) for case in TABLE}
    expected = {(key, version) for key, versions in SERVED.items() for version in versions}
    assert expected <= requested


def test_requests_are_readable_unless_damaged_on_purpose() -> None:
    for case in TABLE:
        if case.api == "Frame" or case.name.endswith((", cut", " and a byte")):
            continue
        request_type = BY_KEY[case.api_key].request_type(case.version)
        try:
            decode_request(request_type, case.frame(WORLD)[4:])
        except FrameError as error:
            pytest.fail(f"{case.name}: {error}")


@pytest.mark.parametrize("name", ["Produce v13 good", "Fetch v18 from the start"])
def test_ids_are_those_of_the_queried_side(name: str) -> None:
    (case,) = [case for case in TABLE if case.name == name]
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


def differing_paths(one: Any, other: Any) -> list[str]:
    return [path for path, _, _ in differences(normal(one, WORLD), normal(other, WORLD))]


def test_equal_answers_have_no_difference() -> None:
    assert differing_paths(read(), read()) == []
    first = kafka.batch(b"a")
    # Each side has its own leader epochs, so that they are left out of the comparison.
    led = first[:12] + b"\x00\x00\x00\x09" + first[16:]
    assert differing_paths(read(records=first * 2), read(records=led * 2)) == []
    assert differing_paths(read(session_id=5), read(session_id=99)) == []


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
def test_different_answers_name_the_field(fields: dict[str, Any], path: str) -> None:
    assert differing_paths(read(**fields), read()) == [path]


def test_records_are_the_same_for_every_origin_of_the_producer_id() -> None:
    def made(producer_id: int, value: bytes) -> bytes:
        records = [Record(b"k", value, (), 0)]
        return build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)

    assert differing_paths(read(records=made(5, b"v")), read(records=made(6, b"v"))) == []
    assert differing_paths(read(records=made(5, b"v")), read(records=made(5, b"w"))) != []


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


def test_every_intended_difference_matches_a_case() -> None:
    """Each also has a reason."""
    names = [*(case.name for case in TABLE), "SaslHandshake v0 plain"]  # named, and not served
    for line in intended_differences.ON_PURPOSE:
        assert len(line.reason) >= 8
        assert fnmatch.filter(names, line.case), line


def test_intended_difference_matches_both_answers() -> None:
    line = intended_differences.Difference(
        "Produce *", "*.message", "because", ours="<*>", theirs="None"
    )
    assert line.explains("Produce v3 good", "a.message", "<message>", None)
    assert not line.explains("Produce v3 good", "a.message", None, "<message>")
    assert not line.explains("Fetch v4 good", "a.message", "<message>", None)
    assert not line.explains("Produce v3 good", "a.code", "<message>", None)


def test_each_kind_of_request_is_sent_in_its_newest_version_and_in_an_older_one() -> None:
    few = some(TABLE, rounds=1)
    assert len(few) < len(TABLE) / 2
    names = [item.name for item in few]
    # The selection keeps the order of the table.
    assert sorted(names, key=[item.name for item in TABLE].index) == names
    versions: dict[str, list[int]] = {}
    for item in few:
        versions.setdefault(item.kind, []).append(item.version)
    # Errors are tested in the newest version and in one that is older.
    fetched = versions["Fetch max bytes -1"]
    assert (len(fetched), max(fetched)) == (2, 18)
    assert {len(version) for kind, version in versions.items() if "Fetch plain: " in kind} == {1}
    older = {min(version) for kind, version in versions.items() if kind.startswith("Fetch plain")}
    assert older > {4, 11, 18}
    assert {item.round for item in few} == {None, 0}


def test_each_field_of_a_request_is_varied() -> None:
    fields = {"replica_id": -1, "topics": ({"name": READ, "partitions": ({},)},)}
    original = request(2, 11, fields, Here(WORLD, ""))
    found = {
        variation.name: variation.of(original)
        for variation in variations(original, frozenset({"timeout"}))
    }
    assert {name.partition(" ")[0] for name in found} == {
        "replica_id", "isolation_level", "topics", "topics.name", "topics.partitions",
        "topics.partitions.partition_index", "topics.partitions.current_leader_epoch",
        "topics.partitions.timestamp",
    }  # fmt: skip
    assert found["replica_id -2"].replica_id == -2
    assert "replica_id -1" not in found
    assert found["topics twice"].topics == original.topics * 2
    assert found["topics.partitions empty"].topics[0].partitions == ()
    wrong = found["topics.partitions.timestamp largest"].topics[0].partitions[0]
    assert wrong.timestamp == 2**63 - 1


@pytest.mark.parametrize("good", [item for table in GOOD.values() for item in table], ids=str)
def test_valid_request_names_existing_fields(good: Good) -> None:
    versions = SERVED.get(good.api_key, range(2))
    known = {
        field.name
        for version in versions
        for field in dataclasses.fields(load_request_schema(good.api_key, version))
    }
    assert set(good.fields) <= known
