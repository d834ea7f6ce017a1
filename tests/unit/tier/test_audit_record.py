"""The record of audits in the store: it round-trips, and anything else is rejected."""

import dataclasses
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tidemark.tier.maintenance import audit_record
from tidemark.tier.maintenance.audit_record import (
    BYTES_MAX,
    DESCRIBED_MAX,
    TOPICS_MAX,
    AuditRecord,
    AuditUnreadable,
    TopicAudit,
    WorstFinding,
    decode,
    encode,
    read_record,
    write_record,
)
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.metadata.layout import AUDIT_KEY, segment_key
from tidemark.tier.stores.objects import PreconditionFailed, StoreUnavailable

NAME, ID = "flights", uuid.UUID(int=7)


def key_of(topic_id: uuid.UUID = ID, name: str = NAME) -> str:
    return segment_key(name, topic_id, 3, 10, uuid.UUID(int=1)) + ".log"


def audit(number: int = 7, *, damaged: int = 0, **fields: Any) -> TopicAudit:
    topic_id = uuid.UUID(int=number)
    worst = (WorstFinding(FindingKind.MISSING, 3, key_of(topic_id), 10, 19),) if damaged else ()
    made = TopicAudit(
        topic_id=topic_id,
        name=NAME,
        at_ms=1000 + number,
        by="tidemark-1.2.3",
        manifests=2,
        versions=(4, 90),
        segments=12,
        size_bytes=3456,
        counts={FindingKind.MISSING: damaged} if damaged else {},
        worst=worst,
    )
    return dataclasses.replace(made, **fields)


def test_an_audit_record_round_trips(memory: Any) -> None:
    assert read_record(memory) == AuditRecord()
    assert write_record(memory, [audit(7), audit(8, damaged=2)], replaces_all=True) == 0
    assert read_record(memory).topics == {
        uuid.UUID(int=7): audit(7),
        uuid.UUID(int=8): audit(8, damaged=2),
    }


def test_a_partial_audit_keeps_other_topics_and_a_full_one_replaces_all(
    memory: Any,
) -> None:
    write_record(memory, [audit(7), audit(8)], replaces_all=True)
    write_record(memory, [audit(8, damaged=1)], replaces_all=False)
    assert read_record(memory).topics == {
        uuid.UUID(int=8): audit(8, damaged=1),
        uuid.UUID(int=7): audit(7),
    }
    write_record(memory, [audit(9)], replaces_all=True)
    assert list(read_record(memory).topics) == [uuid.UUID(int=9)]


def test_equal_audits_have_different_bodies(memory: Any) -> None:
    """Equal bodies would have equal versions, and compare-and-set could not distinguish them."""
    write_record(memory, [audit()], replaces_all=True)
    first = memory.objects[AUDIT_KEY]
    write_record(memory, [audit()], replaces_all=True)
    # The serial number differs.
    assert memory.objects[AUDIT_KEY] != first


def test_concurrent_audits_are_both_recorded(memory: Any) -> None:
    replace_ = memory.replace
    write_record(memory, [audit(1)], replaces_all=True)

    def replace_after_other(*args: Any) -> Any:
        memory.replace = replace_
        write_record(memory, [audit(2)], replaces_all=False)
        return replace_(*args)

    # Another audit writes between the read and the compare-and-set of this one.
    memory.replace = replace_after_other
    write_record(memory, [audit(3)], replaces_all=False)
    assert {topic.int for topic in read_record(memory).topics} == {1, 2, 3}


def test_a_repeatedly_overtaken_writer_raises_an_error(memory: Any) -> None:
    write_record(memory, [audit()], replaces_all=True)

    def refuse(*_: Any) -> Any:
        raise PreconditionFailed("another was quicker")

    memory.replace = refuse
    with pytest.raises(StoreUnavailable, match="written by others all the time"):
        write_record(memory, [audit()], replaces_all=True)


def _rows(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda fields: change(fields["topics"][0])


def _worst(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return _rows(lambda row: row["worst"][0].__setitem__(name, value))


def _row(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return _rows(lambda row: row.__setitem__(name, value))


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "no topics": lambda fields: fields.pop("topics"),
    "topics by number": lambda fields: fields.__setitem__("topics", 3),
    "topics by name": lambda fields: fields.__setitem__("topics", {"a": {}}),
    "serial below zero": lambda fields: fields.__setitem__("serial", -1),
    "serial true": lambda fields: fields.__setitem__("serial", True),
    "version as text": lambda fields: fields.__setitem__("formatVersion", "1"),
    "no id": _row("topicId", "x"),
    "id by number": _row("topicId", 7),
    "name that is a sentence": _row("name", "run this: curl http://x | sh"),
    "name of control characters": _row("name", "a\x1b[31mb"),
    "program that is a sentence": _row("by", "trust me"),
    "lone surrogate": _row("by", "\ud800"),
    "time of 64 bits and one": _row("atMs", 2**63),
    "time as a fraction": _row("atMs", 1.5),
    "one version": _row("versions", [1]),
    "segments that are none": _row("segments", None),
    "kind of no topic": _row("findings", {"Unnamed": 1}),
    "kind that is none": _row("findings", {"Fine": 1}),
    "finding of none": _row("findings", {"Missing": 0}),
    "findings in a list": _row("findings", ["Missing"]),
    "too many described": _rows(lambda row: row.__setitem__("worst", row["worst"] * 4)),
    "another topic's object": _worst("object", key_of(uuid.UUID(int=9))),
    "another name's object": _worst("object", key_of(name="other")),
    "object that is no key": _worst("object", "data/../../etc/passwd"),
    "offsets of one": _worst("offsets", [1]),
    "offset below none": _worst("offsets", [-2, 1]),
    "partition as text": _worst("partition", "0; rm"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_record_with_one_invalid_field_is_rejected(name: str) -> None:
    fields = json.loads(encode(AuditRecord({ID: audit(damaged=1)})))
    # Everyone with access to the store can write this object, and its fields are shown to users.
    SPOILT[name](fields)
    with pytest.raises(AuditUnreadable, match=r"^it is no record of an audit$"):
        decode(json.dumps(fields).encode())


TORN = {
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "a number": b"3",
    "nested": b"[" * 100_000,
    "a long number": b'{"formatVersion":' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", TORN)
def test_an_invalid_record_is_reported_with_a_fixed_message_and_rewritten(
    name: str, memory: Any
) -> None:
    memory.objects[AUDIT_KEY] = TORN[name]
    with pytest.raises(AuditUnreadable, match=r"^it is no record of an audit$"):
        read_record(memory)
    write_record(memory, [audit()], replaces_all=False)
    assert list(read_record(memory).topics) == [ID]


def test_a_truncated_record_is_rejected() -> None:
    data = encode(AuditRecord({ID: audit(damaged=1)}))
    # Cut at every byte, as an interrupted upload could.
    for end in range(len(data)):
        with pytest.raises(AuditUnreadable):
            decode(data[:end])


def test_a_newer_format_is_named() -> None:
    data = json.dumps({"formatVersion": 2, "serial": 1, "findings": []}).encode()
    with pytest.raises(AuditUnreadable, match="format version 2, this program reads 1"):
        decode(data)


def test_an_oversized_record_is_read_only_up_to_the_limit(memory: Any) -> None:
    memory.objects[AUDIT_KEY] = b"[" + b"0," * BYTES_MAX
    ranges = []
    memory.get_range = lambda key, start, end: ranges.append((start, end)) or b"0" * (end - start)
    with pytest.raises(AuditUnreadable, match=rf"more than {BYTES_MAX} bytes"):
        read_record(memory)
    assert ranges == [(0, BYTES_MAX + 1)]


def test_the_largest_record_is_below_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers and names have their maximum length, and there are as many topics as allowed."""
    name, most = "n" * 249, 2**63 - 1
    kinds = {kind: most for kind in FindingKind if kind.is_damage}
    worst = WorstFinding(FindingKind.DAMAGED, 2**31, key_of(ID, name), most, most)
    row = audit(
        name=name,
        by="v" * 60,
        at_ms=most,
        manifests=most,
        versions=(most, most),
        segments=most,
        size_bytes=most,
        counts=kinds,
        worst=(worst,) * 5,
    )
    # Size of one row with its findings described, and with only their number.
    described = len(encode(AuditRecord({ID: row})))
    counted = len(encode(AuditRecord({ID: dataclasses.replace(row, worst=())})))
    assert TOPICS_MAX * counted + DESCRIBED_MAX * (described - counted) < BYTES_MAX
    monkeypatch.setattr(audit_record, "DESCRIBED_MAX", 4)
    rows = {uuid.UUID(int=number): row for number in range(3)}
    described_counts = [
        len(load["worst"]) for load in json.loads(encode(AuditRecord(rows)))["topics"]
    ]
    assert described_counts == [3, 1, 0]


def test_beyond_the_limit_topics_with_findings_and_the_latest_stay(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_record, "TOPICS_MAX", 3)
    audits = [audit(1, damaged=1), audit(2), audit(3), audit(4), audit(5, damaged=1)]
    # Five topics and room for three: 1 and 5 have findings, and 4 is the latest of the others.
    assert write_record(memory, audits, replaces_all=True) == 2
    assert {topic.int for topic in read_record(memory).topics} == {1, 4, 5}


def test_a_topic_with_an_invalid_name_does_not_affect_others(memory: Any) -> None:
    """Any client with access to the store can write a topic object and a manifest."""
    stranger = WorstFinding(FindingKind.MISSING, 0, "data/elsewhere", 1, 2)
    odd = audit(8, name="no topic's name")
    write_record(memory, [audit(7, damaged=1, worst=(stranger,)), odd], replaces_all=True)
    # The topic with the odd name is left out, and of the other one only the description of its
    # finding.
    (found,) = read_record(memory).topics.values()
    assert (found.counts, found.worst) == ({FindingKind.MISSING: 1}, ())
