"""Rows and tombstones survive their codec; slices are chosen the same everywhere."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller.controller_world import numbered_uuid, row
from tidemark.ids import id_text, parse_id
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark_operator.controller.state.model import PartitionRow, Tombstone
from tidemark_operator.controller.state.rows import (
    BadRow,
    decode_directory,
    decode_row,
    decode_tombstone,
    encode_directory,
    encode_row,
    encode_tombstone,
    slice_of,
)

_names = st.text(alphabet="abcXYZ019._-", min_size=0, max_size=249)
_ids = st.lists(st.integers(-5, 2**31 - 1), max_size=6, unique=True).map(tuple)
_epochs = st.integers(0, 2**31 - 1)
_rows = st.builds(
    PartitionRow,
    topic_id=st.uuids(),
    partition=st.integers(0, 9999),
    replicas=_ids,
    isr=_ids,
    leader=st.integers(-1, 2**31 - 1),
    leader_epoch=_epochs,
    partition_epoch=_epochs,
    adding=_ids,
    removing=_ids,
    manifest=st.booleans(),
    leader_recovery_state=st.sampled_from(LeaderRecoveryState),
    elr=_ids,
    last_known_elr=_ids,
    name=_names,
)
_tombstones = st.builds(
    Tombstone,
    topic_id=st.uuids(),
    name=_names,
    partitions=st.integers(0, 9999),
    tiered_epoch=st.integers(-1, 1000),
    pending=_ids,
)


@given(_rows)
def test_row_survives_its_codec(made: PartitionRow) -> None:
    assert decode_row(encode_row(made)) == made


@given(_tombstones)
def test_tombstone_survives_its_codec(made: Tombstone) -> None:
    assert decode_tombstone(encode_tombstone(made)) == made


@given(st.uuids())
def test_topic_ids_have_kafkas_text_form(topic_id: uuid.UUID) -> None:
    text = id_text(topic_id)
    # Kafka's Uuid.toString: base64 of 16 bytes without padding.
    assert len(text) == 22
    assert parse_id(text) == topic_id


def test_a_row_is_one_short_text() -> None:
    text = encode_row(row((1, 2, -1), leader_epoch=4, partition_epoch=9, manifest=True))
    assert text == f"3|{id_text(numbered_uuid(1))}|0|1,2,-1|1|4|9|1,2|||1|0|||topic-1"


def test_row_of_version_1_is_recovered() -> None:
    made = row((1, 2, -1), leader_epoch=4, partition_epoch=9, manifest=True)
    old = f"1|{id_text(numbered_uuid(1))}|0|1,2,-1|1|4|9|1,2|||1|topic-1"
    assert decode_row(old) == made
    assert not decode_row(old).recovering


def test_row_of_version_2_has_no_eligible_leaders() -> None:
    made = row((1, 2, -1), leader_epoch=4, partition_epoch=9, manifest=True)
    old = f"2|{id_text(numbered_uuid(1))}|0|1,2,-1|1|4|9|1,2|||1|0|topic-1"
    assert decode_row(old) == made


@given(st.integers(0, 2**31 - 1), st.uuids())
def test_log_directory_survives_its_codec(node_id: int, directory_id: uuid.UUID) -> None:
    assert decode_directory(encode_directory(node_id, directory_id)) == (node_id, directory_id)


@pytest.mark.parametrize("text", ["", "1", "x|AAAAAAAAAAAAAAAAAAAAAA", "-1|", "1|AAAA"])
def test_invalid_log_directory_is_refused(text: str) -> None:
    with pytest.raises(BadRow):
        decode_directory(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        # | A later version, a missing field, and then an invalid field each.
        "4|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0|0|||",
        "3|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0|0|",
        "3|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0|0|x||",
        "2|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0|",
        "2|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0|2|",
        "1|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||0",
        "1|AAAA|0|1|1|0|0|1|||0|",
        "1|AAAAAAAAAAAAAAAAAAAAAA|x|1|1|0|0|1|||0|",
        "1|AAAAAAAAAAAAAAAAAAAAAA|0|1,|1|0|0|1|||0|",
        "1|AAAAAAAAAAAAAAAAAAAAAA|0|1|1|0|0|1|||yes|",
    ],
)
def test_invalid_row_is_refused(text: str) -> None:
    with pytest.raises(BadRow):
        decode_row(text)


def test_slice_of_a_partition_is_stable() -> None:
    topic_id = uuid.UUID("12345678-1234-4678-9234-567812345678")
    # Recorded values: another hash would orphan every stored row.
    assert [slice_of(topic_id, part) for part in (0, 63, 64, 128)] == [56, 56, 21, 42]


@given(st.uuids(), st.integers(0, 9999), st.integers(1, 1024))
def test_64_consecutive_partitions_share_a_slice(
    topic_id: uuid.UUID, partition: int, slices: int
) -> None:
    first = partition // 64 * 64
    assert slice_of(topic_id, partition, slices) == slice_of(topic_id, first, slices)
    assert 0 <= slice_of(topic_id, partition, slices) < slices
