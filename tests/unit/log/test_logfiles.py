"""File formats of a log directory: exact bytes, and round trips."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.ids import id_text, parse_id
from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import (
    CheckpointFormatError,
    read_epochs,
    read_offsets,
    read_partition_metadata,
    write_epochs,
    write_offsets,
    write_partition_metadata,
)
from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.producer_snapshot import (
    ProducerEntry,
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from tidemark.logfiles.time_index import TimeEntry, TimeIndex

_RISING = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5000)), min_size=1, max_size=30)


@given(base=st.integers(0, 2**60), steps=_RISING)
def test_offset_index_lookups_agree_with_a_scan(base: int, steps: list[tuple[int, int]]) -> None:
    index, entries = OffsetIndex(base), []
    offset, position = base, 0
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        index.append(offset, position)
        entries.append((offset, position))
    assert OffsetIndex.from_bytes(base, index.to_bytes()).to_bytes() == index.to_bytes()
    assert index.to_bytes(1) == index.to_bytes()[8:]
    # Every entry's offset, its neighbours, and both ends of the index.
    for probe in {base, offset, offset + 1, *(o - 1 for o, _ in entries), *(o for o, _ in entries)}:
        expected = [p for o, p in entries if o <= probe]
        assert index.position_for(probe) == (expected[-1] if expected else 0)
        for limit in (0, position // 2, position):
            below = [p for o, p in entries if o < probe and p <= limit]
            assert index.floor_position(limit, probe) == (below[-1] if below else 0)


def test_offset_index_bytes_are_big_endian() -> None:
    index = OffsetIndex(100)
    index.append(105, 4200)
    assert index.to_bytes().hex() == "00000005" + "00001068"
    # Not a multiple of 8 bytes, negative numbers, and entries that fall.
    for broken in (b"\0" * 7, b"\xff" * 8, bytes.fromhex("0000000900000009" + "0000000100000001")):
        with pytest.raises(IndexFormatError):
            OffsetIndex.from_bytes(100, broken)


def test_time_index_keeps_only_rising_timestamps() -> None:
    index = TimeIndex(100)
    assert index.maybe_append(50, 101)
    assert not index.maybe_append(50, 102)
    assert not index.maybe_append(-1, 103)
    assert index.maybe_append(60, 105)
    # Entries of 12 bytes: an INT64 timestamp, then an INT32 offset relative to the base.
    assert index.to_bytes().hex() == "000000000000003200000001000000000000003c00000005"
    reloaded = TimeIndex.from_bytes(100, index.to_bytes())
    assert reloaded.lookup(49) == TimeEntry(-1, 100)
    assert reloaded.lookup(59) == TimeEntry(50, 101)
    assert reloaded.lookup(60) == reloaded.last() == TimeEntry(60, 105)
    reloaded.truncate_to(105)
    assert reloaded.last() == TimeEntry(50, 101)
    with pytest.raises(IndexFormatError):
        TimeIndex.from_bytes(100, index.to_bytes()[12:] + index.to_bytes()[:12])


_TOPICS = st.from_regex(r"[a-z0-9._-]{1,20}", fullmatch=True)


@given(st.dictionaries(st.tuples(_TOPICS, st.integers(0, 9999)), st.integers(0, 2**62)))
def test_offset_checkpoints(offsets: dict[tuple[str, int], int]) -> None:
    assert read_offsets(write_offsets(offsets)) == offsets


def test_checkpoint_text_equals_kafkas() -> None:
    assert write_offsets({("t", 1): 5, ("a", 0): 7}) == "0\n2\na 0 7\nt 1 5\n"
    assert read_offsets("") == {}
    epochs = LeaderEpochs((EpochEntry(0, 0), EpochEntry(3, 17)))
    assert write_epochs(epochs) == "0\n2\n0 0\n3 17\n"
    assert read_epochs(write_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    "text",
    ["1\n0\n", "0\n2\na 0 7\n", "0\n1\na 0\n", "0\n1\na 0 x\n", "0\n1\na 0 7", "0\nx\n", "0"],
)
def test_torn_checkpoints_are_errors(text: str) -> None:
    with pytest.raises(CheckpointFormatError):
        read_offsets(text)


def test_decreasing_epochs_in_a_checkpoint_are_an_error() -> None:
    with pytest.raises(CheckpointFormatError):
        read_epochs("0\n2\n1 0\n0 5\n")


@given(st.uuids())
def test_topic_ids_are_base64_and_round_trip(topic_id: uuid.UUID) -> None:
    # URL-safe base64 of 16 bytes without padding, as Kafka's Uuid.toString.
    assert len(id_text(topic_id)) == 22
    assert parse_id(id_text(topic_id)) == topic_id
    assert read_partition_metadata(write_partition_metadata(topic_id)) == topic_id


@pytest.mark.parametrize("text", ["", "version: 1\ntopic_id: x", "version: 0\ntopic_id: ???"])
def test_invalid_partition_metadata_is_an_error(text: str) -> None:
    with pytest.raises(CheckpointFormatError):
        read_partition_metadata(text)


_INT64 = st.integers(-(2**63), 2**63 - 1)
_INT32 = st.integers(-(2**31), 2**31 - 1)


@given(
    st.lists(
        st.builds(
            ProducerEntry,
            producer_id=_INT64,
            producer_epoch=st.integers(-(2**15), 2**15 - 1),
            last_sequence=_INT32,
            last_offset=_INT64,
            offset_delta=_INT32,
            timestamp_ms=_INT64,
            coordinator_epoch=_INT32,
            current_txn_first_offset=_INT64,
        ),
        max_size=4,
    )
)
def test_producer_snapshots_round_trip_and_reject_damage(producers: list[ProducerEntry]) -> None:
    data = encode_snapshot(producers)
    assert decode_snapshot(data) == tuple(producers)
    # Cut short, an unknown version, and a wrong checksum.
    for broken in (data[:-1], data[:5], b"\0\2" + data[2:], data[:6] + b"\1" + data[7:]):
        with pytest.raises(SnapshotFormatError):
            decode_snapshot(broken)


def test_file_and_directory_names() -> None:
    assert names.segment_file_name(42, ".log") == "00000000000000000042.log"
    assert names.parse_segment_file_name("00000000000000000042.timeindex") == (42, ".timeindex")
    assert names.parse_segment_file_name("00000000000000000042.log.deleted") is None
    assert names.parse_partition_directory("a-b-12") == ("a-b", 12)
    assert names.parse_partition_directory("plain") is None
    # The name of a deleted directory is cut to NAME_MAX, as Kafka's LogManager does for topics of
    # 249 characters.
    deleted = names.deleted_directory_name("t" * 249, 12, uuid.UUID(int=5))
    assert len(deleted) == 255
    assert names.is_deleted_directory(deleted)
    assert names.parse_partition_directory(deleted) is None
