"""Segments in buckets, the packed auxiliary object, and KIP-917's custom metadata."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tier.test_frames import ONE
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.builder import Record, build_batch
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests
from tidemark.tier.segments import auxiliary, sealing
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux, AuxCorrupt, pack, unpack
from tidemark.tier.segments.integrity import (
    COPY_ALGORITHM,
    ObjectDamaged,
    ObjectVersionUnsupported,
    digest_of,
)
from tidemark.tier.segments.local_segment import LocalLogDamaged
from tidemark.tier.segments.remote_storage_manager import (
    RemoteStorageManager,
    SegmentData,
    decode_custom_metadata,
    encode_custom_metadata,
)
from tidemark.tier.stores import directory
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.key_ring import KeyRing
from tidemark.tier.stores.objects import ObjectNotFound, StoreUnavailable

LOG = b"0123456789" * 10
AUX = Aux(offset_index=b"oi", time_index=b"", leader_epochs=b"0\n0\n", producer_snapshot=b"ps")
aborted = st.builds(
    AbortedRanges,
    st.lists(st.builds(AbortedTxn, *[st.integers(0, 2**62)] * 4), max_size=3).map(tuple),
    st.none() | st.integers(0, 2**62),
)


@given(st.binary(), st.binary(), st.binary(), st.binary(), aborted)
def test_aux_round_trips(a: bytes, b: bytes, c: bytes, d: bytes, ranges: AbortedRanges) -> None:
    aux = Aux(offset_index=a, time_index=b, leader_epochs=c, producer_snapshot=d, aborted=ranges)
    assert unpack(pack(aux), "x") == aux


def test_the_first_version_of_aux_is_read() -> None:
    """``AUX`` as the first version packed it: five sections, and no digests of pieces."""
    first = bytes.fromhex(
        "544d41580001000500010000000000028ff01087000200000000000000000000000300000000000"
        "42ab4b80200040000000000022cf004ac00050000000000251aa6dd61"
        "6f69300a300a70737b2261626f72746564223a5b5d2c2266697273744f70656e4f6666736574223a6e756c6c7d"
    )
    assert unpack(first, "x") == replace(AUX, algorithm=DigestAlgorithm.SHA256)


def test_an_aux_of_an_unknown_algorithm_is_refused() -> None:
    data = pack(AUX)
    assert data.endswith(AUX.algorithm.encode())
    # The section of the name is the last one, and its CRC is right.
    name, rows = b"sha512", 8 + 12 * 6
    row = struct.pack(">HHII", 9, 0, len(name), google_crc32c.value(name))
    newer = data[:rows] + row + data[rows + 12 : -len(AUX.algorithm)] + name
    with pytest.raises(AuxCorrupt, match="algorithm 'sha512', known are sha256, blake3"):
        unpack(newer, "x")


def test_an_aux_of_another_algorithm_than_its_entry_is_rejected(
    place: Any, memory: Any, data: SegmentData
) -> None:
    """A writer that names different algorithms in both has a fault, so no digest is trusted."""
    entry, manager = place.segment(0, 9), RemoteStorageManager({"": memory})
    manager.copy_segment(entry, data)
    for algorithm in set(DigestAlgorithm) - {COPY_ALGORITHM}:
        digest = digest_of(memory.objects[entry.aux_key], algorithm)
        known = replace(entry, digests=Digests(algorithm, bytes(32), digest))
        message = f"its digests are {COPY_ALGORITHM}, the manifest's are {algorithm}"
        with pytest.raises(ObjectDamaged, match=message):
            manager.fetch_aux(known)


def test_damage_of_an_aux_is_detected_at_any_byte() -> None:
    data = pack(AUX)
    # Two reserved bytes in each of the seven section headers are not covered by a checksum.
    reserved = {8 + 12 * section + at for section in range(7) for at in (2, 3)}
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        if position not in reserved:
            with pytest.raises(AuxCorrupt, match="x is damaged"):
                unpack(bytes(damaged), "x")
        with pytest.raises(AuxCorrupt):
            unpack(data[:position], "x")


@pytest.fixture
def data(tmp_path: Path) -> SegmentData:
    log = tmp_path / "00.log"
    # The log has grown since its size was taken: only the first 100 bytes belong to the segment.
    log.write_bytes(LOG + b"behind the end")
    return SegmentData(log, 100, AUX)


def test_a_segment_is_copied_fetched_and_deleted(
    place: Any, tmp_path: Path, data: SegmentData
) -> None:
    (tmp_path / "tier").mkdir()
    manager = RemoteStorageManager({"": DirectoryStore(tmp_path / "tier")})
    entry, algorithm = place.segment(0, 9), COPY_ALGORITHM
    piece = digest_of(LOG, algorithm)
    aux = replace(AUX, pieces=(piece,))
    copied = manager.copy_segment(entry, data)
    custom = copied.custom_metadata
    assert custom == json.dumps({"n": 100 + len(pack(aux))}, separators=(",", ":")).encode()
    assert copied.digests == Digests(
        algorithm, digest_of(piece, algorithm), digest_of(pack(aux), algorithm)
    )
    done = replace(entry, custom_metadata=custom, digests=copied.digests)
    assert manager.fetch(done, 5, 12) == b"5678901"
    # A range beyond the end is cut, as RemoteStorageManager.fetchLogSegment does.
    assert manager.fetch(done, 95, 5000) == b"56789"
    assert manager.fetch(done, 100, 5000) == b""
    assert manager.fetch_aux(done) == aux
    assert len(list(manager.list_topic(place.topic, place.topic_id))) == 2
    manager.delete([done])
    # Deleting twice is allowed: a retry follows an unknown outcome.
    manager.delete([done])
    assert list(manager.list_topic(place.topic, place.topic_id)) == []
    with pytest.raises(ObjectNotFound):
        manager.fetch(done, 0, 1)


def test_a_log_shorter_than_its_segment_is_not_copied(
    place: Any, memory: Any, data: SegmentData
) -> None:
    manager = RemoteStorageManager({"": memory})
    with pytest.raises(ValueError, match="114 of the 200 bytes"):
        manager.copy_segment(place.segment(0, 9), replace(data, size_bytes=200))
    with pytest.raises(FileNotFoundError):
        manager.copy_segment(place.segment(0, 9), replace(data, log=data.log.with_name("none")))
    assert not memory.objects


def test_a_damaged_log_is_not_copied(place: Any, directory: DirectoryStore, tmp_path: Path) -> None:
    log = build_batch([Record(None, b"v", (), 0)], base_offset=0, leader_epoch=1)
    path, aux = tmp_path / "log", replace(AUX, has_sound_batches=True)
    manager = RemoteStorageManager({"": directory})
    entry = place.segment(0, 0, size_bytes=len(log))
    path.write_bytes(log)
    copied = manager.copy_segment(entry, SegmentData(path, len(log), aux))
    assert manager.fetch_aux(replace(entry, digests=copied.digests)).has_sound_batches
    manager.delete([entry])
    path.write_bytes(log[:-1] + b"x")
    with pytest.raises(LocalLogDamaged, match=f"^broker 1: {path} is damaged .* before offset 1$"):
        manager.copy_segment(entry, SegmentData(path, len(log), aux))
    assert list(directory.list("data/")) == []


def test_an_unreadable_log_is_not_a_failure_of_the_store(
    place: Any, directory: DirectoryStore, data: SegmentData
) -> None:
    unreadable = replace(data, log=Path("/proc/self/mem"))
    with pytest.raises(ValueError, match="the file to be copied cannot be read"):
        RemoteStorageManager({"": directory}).copy_segment(place.segment(0, 9), unreadable)
    assert list(directory.list("data/")) == []


def test_an_aux_of_another_segment_is_rejected(place: Any, memory: Any, data: SegmentData) -> None:
    """The object is intact in itself. Only the manifest's digest shows that
    it belongs elsewhere."""
    manager = RemoteStorageManager({"": memory})
    entries = [place.segment(n, n) for n in range(2)]
    other = replace(data, aux=replace(AUX, offset_index=b"other"))
    copied = [manager.copy_segment(e, d) for e, d in zip(entries, (data, other), strict=True)]
    memory.objects[entries[0].aux_key] = memory.objects[entries[1].aux_key]
    known = replace(entries[0], digests=copied[0].digests)
    with pytest.raises(ObjectDamaged, match=rf"{known.aux_key} in memory .* before offset 1$"):
        manager.fetch_aux(known)
    assert (
        manager.fetch_aux(entries[0]).offset_index == b"other"
    )  # without digests it cannot be detected


def test_an_aux_of_a_newer_version_is_no_damage(
    place: Any, memory: Any, data: SegmentData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older broker of a rolling upgrade must not advise to give up intact records."""
    manager, entry = RemoteStorageManager({"": memory}), place.segment(0, 9)
    with monkeypatch.context() as patch:
        patch.setattr(auxiliary, "_VERSION", 5)
        known = replace(entry, digests=manager.copy_segment(entry, data).digests)
    message = rf"{entry.aux_key} has format version 5, .* versions up to 4\. Upgrade"
    with pytest.raises(ObjectVersionUnsupported, match=message) as caught:
        manager.fetch_aux(known)
    assert "RecordDeletion" not in str(caught.value)
    # Without a digest, the version may be damaged.
    with pytest.raises(ObjectDamaged, match="RecordDeletion"):
        manager.fetch_aux(entry)


def test_a_sealed_aux_of_a_newer_version_is_no_damage(
    place: Any, memory: Any, data: SegmentData, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = KeyRing.parse(ONE)
    manager, entry = RemoteStorageManager({"": memory}, ring), place.segment(0, 9)
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "_VERSION", 2)
        known = replace(entry, digests=manager.copy_segment(entry, data).digests)
    message = rf"{entry.aux_key} has format version 2, .* versions up to 1\. Upgrade"
    with pytest.raises(ObjectVersionUnsupported, match=message) as caught:
        manager.fetch_aux(known)
    assert "RecordDeletion" not in str(caught.value)


def test_an_oversized_aux_is_not_read(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "OBJECT_BYTES_MAX", 10_000)
    store = directory.DirectoryStore(tmp_path)
    entry = place.segment(0, 9)
    store.put(entry.aux_key, bytes(10_001))
    with pytest.raises(ObjectDamaged, match=rf"{entry.aux_key} in .* 10001 bytes"):
        RemoteStorageManager({"": store}).fetch_aux(entry)


def test_an_aux_with_deeply_nested_ranges_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auxiliary, "_encode_aborted", lambda _: b"[" * 100_000)
    with pytest.raises(AuxCorrupt, match="x is damaged"):
        unpack(pack(AUX), "x")


class TestBuckets:
    def manager(self, stores: dict[str, Any], *names: str) -> RemoteStorageManager:
        return RemoteStorageManager({name: stores[name] for name in names})

    @pytest.fixture
    def stores(self, memory: Any) -> dict[str, Any]:
        return {name: type(memory)() for name in ("one", "two", "six")}

    def test_segments_are_spread_over_buckets_and_found_again(
        self, place: Any, data: SegmentData, stores: dict[str, Any]
    ) -> None:
        manager = self.manager(stores, "one", "two")
        entries = [place.segment(n, n) for n in range(40)]
        done = [
            replace(e, custom_metadata=manager.copy_segment(e, data).custom_metadata)
            for e in entries
        ]
        assert min(len(stores[name].objects) for name in ("one", "two")) >= 10
        # The order of buckets changed and one was added. The custom metadata names the bucket of
        # each segment.
        changed = self.manager(stores, "six", "two", "one")
        assert all(changed.fetch(entry, 0, 3) == b"012" for entry in done)
        changed.delete(done)
        assert not any(store.objects for store in stores.values())

    def test_a_removed_bucket_is_unavailable_not_empty(
        self, place: Any, stores: dict[str, Any]
    ) -> None:
        entry = replace(place.segment(0, 9), custom_metadata=encode_custom_metadata("two", 5))
        manager = self.manager(stores, "one")
        for call in (lambda: manager.fetch(entry, 0, 1), lambda: manager.delete([entry])):
            with pytest.raises(
                StoreUnavailable, match="'two', which is no longer configured"
            ) as caught:
                call()
            assert caught.value.retriable is False

    def test_an_unfinished_copy_is_deleted_from_every_bucket(
        self, place: Any, data: SegmentData, stores: dict[str, Any]
    ) -> None:
        entries = [place.segment(n, n) for n in range(10)]
        # Without custom metadata the bucket is unknown, so a deletion looks in all of them.
        for entry in entries:
            self.manager(stores, "one", "two").copy_segment(entry, data)
        self.manager(stores, "six", "two", "one").delete(entries)
        assert not any(store.objects for store in stores.values())

    def test_a_deleted_topic_is_swept_from_every_bucket(
        self, place: Any, data: SegmentData, stores: dict[str, Any]
    ) -> None:
        manager = self.manager(stores, "one", "two")
        for number in range(10):
            manager.copy_segment(place.segment(number, number), data)
        stores["two"].put("data/another-topic/0/1.log", b"x")
        swept = manager.sweep_topic(place.topic, place.topic_id, 4)
        assert swept == 8, "one call deletes a limited number in each bucket"
        while manager.sweep_topic(place.topic, place.topic_id, 4):
            pass
        assert [list(store.objects) for store in stores.values() if store.objects] == [
            ["data/another-topic/0/1.log"]
        ]


def test_custom_metadata_is_compact_and_names_the_bucket() -> None:
    custom = encode_custom_metadata(
        "a-bucket-with-a-name-of-63-characters-which-is-the-longest-one", 2**40, 2**40
    )
    assert decode_custom_metadata(custom).size_bytes == 2**40
    # KIP-917 limits custom metadata to 128 bytes by default.
    assert len(custom) <= 128
    assert decode_custom_metadata(encode_custom_metadata("", 7)) == ("", 7, None)
    assert decode_custom_metadata(encode_custom_metadata("b", 7, 5)) == ("b", 7, 5)
    for foreign in (b"", b"\xff", b"[]", b"{}", b'{"n":"x"}', b'{"n":Infinity}'):
        with pytest.raises(StoreUnavailable, match="another storage manager"):
            decode_custom_metadata(foreign)
