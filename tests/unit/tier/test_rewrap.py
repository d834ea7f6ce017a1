"""Rotation of the key-encryption key: headers change, logs are not touched."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tier.conftest import MemoryStore, TierPartition
from tests.unit.tier.test_frames import AUX, LINES, NEW, OLD, ONE, TWO
from tidemark.tier.maintenance.rewrap import rewrap
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments import sealing
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager, SegmentData
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.key_ring import NO_KEYS, EncryptionKeyMissing, KeyRing


class CallRecordingStore(MemoryStore):
    """Store that records the keys of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def get(self, key: str) -> Any:
        self.calls.append(("get", key))
        return super().get(key)

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        self.calls.append(("get_range", key))
        return self.objects[key][start:end_exclusive]

    def put(self, key: str, data: bytes) -> None:
        self.calls.append(("put", key))
        super().put(key, data)

    def replace(self, key: str, data: bytes, expected: Any) -> Any:
        self.calls.append(("replace", key))
        return super().replace(key, data, expected)


def tier_of(store: MemoryStore, keys: KeyRing) -> Tier:
    manifests, topics = ManifestStore(store), TopicCatalog(store)  # type: ignore[arg-type]
    segments = RemoteStorageManager({"": store}, keys)  # type: ignore[dict-item]
    reader = TierReader(manifests, topics)
    return Tier(store, manifests, segments, topics, reader)  # type: ignore[arg-type]


@pytest.fixture
def store() -> CallRecordingStore:
    return CallRecordingStore()


@pytest.fixture
def entries(store: CallRecordingStore, tmp_path: Path) -> list[SegmentEntry]:
    """Four segments of the old key, and one that is not encrypted."""
    (tmp_path / "log").write_bytes(LINES)
    place, done = TierPartition(), []
    for number in range(5):
        entry = place.segment(number, number, size_bytes=len(LINES))
        segments = tier_of(store, NO_KEYS if number == 4 else OLD).segments
        copied = segments.copy_segment(entry, SegmentData(tmp_path / "log", len(LINES), AUX))
        custom, digests = copied.custom_metadata, copied.digests
        done.append(replace(entry, custom_metadata=custom, digests=digests))
    store.calls.clear()
    return done


def test_rotation_touches_no_log(store: CallRecordingStore, entries: list[SegmentEntry]) -> None:
    logs = {key: value for key, value in store.objects.items() if key.endswith(".log")}
    sizes = {key: len(value) for key, value in store.objects.items()}
    report = rewrap(tier_of(store, NEW))
    assert (report.rewrapped, report.failed) == (4, 0)
    assert report.segments == {"k2": 4, "": 1}
    assert not [call for call in store.calls if call[1].endswith(".log")]
    assert {key: store.objects[key] for key in logs} == logs
    # The sizes in manifests stay valid.
    assert {key: len(value) for key, value in store.objects.items()} == sizes
    # The old key is not needed any more, and the digests of the manifest still match.
    segments = tier_of(store, KeyRing.parse(TWO)).segments
    assert all(segments.fetch(entry, 0, len(LINES)) == LINES for entry in entries)
    with pytest.raises(EncryptionKeyMissing, match="'k2'"):
        tier_of(store, OLD).segments.fetch_aux(entries[0])


def test_repeated_rotation_reads_headers_only(
    store: CallRecordingStore, entries: list[SegmentEntry]
) -> None:
    rewrap(tier_of(store, NEW))
    store.calls.clear()
    assert rewrap(tier_of(store, NEW)).rewrapped == 0
    assert {call for call, _ in store.calls} == {"get_range"}
    assert len(store.calls) == len(entries)


def test_dry_run_counts_segments_by_their_keys(
    store: CallRecordingStore, entries: list[SegmentEntry]
) -> None:
    before = dict(store.objects)
    report = rewrap(tier_of(store, NO_KEYS), dry_run=True)
    assert (report.segments, report.rewrapped) == ({"k1": 4, "": 1}, 0)
    assert report.examined == len(entries)
    assert store.objects == before


def test_interrupted_rotation_leaves_every_segment_readable(
    store: CallRecordingStore, entries: list[SegmentEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count(1)
    real = CallRecordingStore.replace

    def interrupted(self: CallRecordingStore, *call: Any) -> Any:
        if next(calls) > 2:
            raise KeyboardInterrupt
        return real(self, *call)

    # Two of four segments have the new key when the command is interrupted.
    with monkeypatch.context() as patch:
        patch.setattr(CallRecordingStore, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rewrap(tier_of(store, NEW))
    segments = tier_of(store, NEW).segments
    assert all(segments.fetch(entry, 5, 10) == LINES[5:10] for entry in entries)
    assert rewrap(tier_of(store, NEW)).rewrapped == 2


def test_deleted_segment_is_not_written_again(
    store: CallRecordingStore, entries: list[SegmentEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CallRecordingStore.get

    def late(self: CallRecordingStore, key: str) -> Any:
        found = real(self, key)
        self.delete(key)
        return found

    monkeypatch.setattr(CallRecordingStore, "get", late)
    report = rewrap(tier_of(store, NEW))
    assert (report.rewrapped, report.failed) == (0, 0)
    assert [key for key in store.objects if key.endswith(".aux")] == [entries[4].aux_key]


def test_segments_that_cannot_be_rewrapped_are_named(
    store: CallRecordingStore, entries: list[SegmentEntry]
) -> None:
    # One is damaged, and the key of another is missing.
    body = bytearray(store.objects[entries[0].aux_key])
    body[-1] ^= 1
    store.put(entries[0].aux_key, bytes(body))
    report = rewrap(tier_of(store, NEW))
    assert (report.rewrapped, report.failed) == (3, 1)
    assert entries[0].aux_key in report.failures[0]
    third = KeyRing.parse(TWO.replace("k2", "k3"))
    report = rewrap(tier_of(store, third))
    assert (report.rewrapped, report.failed) == (0, 4)
    assert "'k2'" in report.failures[1]


def test_a_segment_of_a_newer_version_is_named_with_the_remedy(
    store: CallRecordingStore, entries: list[SegmentEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = entries[0]
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "_VERSION", 2)
        key = sealing.DataKey.create(newer.key)
        store.put(newer.aux_key, sealing.seal_aux(b"packed", key, key.wrapped(OLD)))
    report = rewrap(tier_of(store, NEW))
    assert (report.rewrapped, report.failed) == (3, 1)
    assert f"{newer.aux_key} has format version 2" in report.failures[0]
    assert "Upgrade" in report.failures[0]


def test_the_active_key_is_known_by_its_bytes(
    store: CallRecordingStore, entries: list[SegmentEntry]
) -> None:
    """A new key with the id of the old one is not the key that the segments have."""
    other = TWO.replace("k2", "k1")
    report = rewrap(tier_of(store, KeyRing.parse(other)))
    assert (report.rewrapped, report.failed) == (0, 4)
    assert "has the bytes" in report.failures[0]
    counted = rewrap(tier_of(store, KeyRing.parse(other)), dry_run=True).segments
    assert counted == {"k1 with other bytes": 4, "": 1}
    assert rewrap(tier_of(store, KeyRing.parse(other + ONE))).rewrapped == 4
    segments = tier_of(store, KeyRing.parse(other)).segments
    assert all(segments.fetch(entry, 0, 5) == LINES[:5] for entry in entries)


def test_rotation_needs_an_active_key(store: CallRecordingStore) -> None:
    with pytest.raises(InvalidConfig, match="Name the file with the keys"):
        rewrap(tier_of(store, NO_KEYS))
