"""Compressed and encrypted segments: any range is read back, and every change is found."""

import os
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tier.conftest import MemoryStore, TierPartition
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.auxiliary import Aux, pack, unpack
from tidemark.tier.segments.frames import Frames, FrameWriter
from tidemark.tier.segments.integrity import (
    COPY_ALGORITHM,
    PIECE_BYTES,
    ObjectDamaged,
    digest_of,
    wrong_piece,
)
from tidemark.tier.segments.remote_storage_manager import (
    RemoteStorageManager,
    SegmentData,
    decode_custom_metadata,
    stored_log_bytes,
)
from tidemark.tier.segments.sealing import DataKey
from tidemark.tier.segments.segment_origin import encode_origin, origin_version, read_origin
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.key_ring import NO_KEYS, EncryptionKeyMissing, KeyRing

AUX = Aux(offset_index=b"oi", time_index=b"", leader_epochs=b"0\n0\n", producer_snapshot=b"ps")
LINES = b"".join(b'{"id": %d, "text": "a line of JSON"}\n' % number for number in range(20_000))
ONE, TWO = (f"k{number}: {'A' * 41}{number}A=\n" for number in (1, 2))
ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OLD, NEW = KeyRing.parse(ONE), KeyRing.parse(TWO + ONE)
#: Forms of storage: whether it is compressed, and the keys.
FORMS = {
    "compressed": (True, NO_KEYS),
    "encrypted": (False, OLD),
    "compressed and encrypted": (True, OLD),
}


def copied(
    store: MemoryStore, folder: Path, form: str, log: bytes = LINES, aux: Aux = AUX
) -> tuple[RemoteStorageManager, SegmentEntry]:
    """Copy a segment in one of the forms; return its storage and its finished entry."""
    compress, keys = FORMS[form]
    (folder / "log").write_bytes(log)
    manager = RemoteStorageManager({"": store}, keys)  # type: ignore[dict-item]
    place = TierPartition()
    entry = place.segment(0, 9, size_bytes=len(log))
    origin = encode_origin(entry, 7, place.topic, place.topic_id, place.partition)
    data = SegmentData(folder / "log", len(log), replace(aux, origin=origin), compress=compress)
    done = manager.copy_segment(entry, data)
    return manager, replace(entry, custom_metadata=done.custom_metadata, digests=done.digests)


@given(
    size=st.integers(1, 3 * PIECE_BYTES + 5),
    parts=st.integers(1, 400_000),
    is_compressed=st.booleans(),
    is_encrypted=st.booleans(),
    data=st.data(),
)
def test_any_range_of_a_log_is_decoded_from_its_frames(
    size: int, parts: int, is_compressed: bool, is_encrypted: bool, data: st.DataObject
) -> None:
    log = LINES[:100] + random.Random(size).randbytes(size // 2) + LINES[:size]
    log = log[:size]
    key = DataKey.create("t/0/name") if is_encrypted else None
    writer = FrameWriter(key, COPY_ALGORITHM, is_compressed=is_compressed)
    stored = b"".join(writer.encode(log[at : at + parts] for at in range(0, size, parts)))
    frames = writer.finish()
    assert frames.stored_bytes == len(stored)
    assert Frames.parse(frames.encode(), COPY_ALGORITHM) == frames
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    begin, behind = frames.stored_range(start, end)
    assert frames.decode(stored[begin:behind], start, end, size) == log[start:end]


def test_an_unpacker_of_zstandard_reads_a_compressed_log(memory: Any, tmp_path: Path) -> None:
    _, entry = copied(memory, tmp_path, "compressed")
    stored = memory.objects[entry.log_key]
    assert len(stored) < 0.4 * len(LINES)
    assert bytes(cramjam.zstd.decompress(stored)) == LINES


@pytest.mark.parametrize("form", FORMS)
def test_sizes_and_positions_are_those_of_the_log(memory: Any, tmp_path: Path, form: str) -> None:
    manager, entry = copied(memory, tmp_path, form)
    assert entry.size_bytes == len(LINES)
    assert manager.fetch(entry, 0, 10**9) == LINES
    assert manager.fetch(entry, 300_000, 300_007) == LINES[300_000:300_007]
    assert manager.fetch(entry, len(LINES), len(LINES) + 5) == b""
    aux = manager.fetch_aux(entry)
    assert wrong_piece(LINES, 0, aux.pieces, aux.algorithm) is None
    assert (aux.offset_index, aux.producer_snapshot) == (b"oi", b"ps")
    # The custom metadata has the sizes of the objects.
    log, stored_aux = memory.objects[entry.log_key], memory.objects[entry.aux_key]
    assert stored_log_bytes(entry) == len(log)
    assert entry.custom_metadata is not None
    assert decode_custom_metadata(entry.custom_metadata).size_bytes == len(log) + len(stored_aux)


def test_batches_that_producers_compressed_are_stored_as_they_are(
    memory: Any, tmp_path: Path
) -> None:
    log = os.urandom(300_000)
    _, entry = copied(memory, tmp_path, "compressed", log)
    assert memory.objects[entry.log_key] == log
    assert b'"l"' not in (entry.custom_metadata or b"")


def test_nothing_of_an_encrypted_segment_is_readable(memory: Any, tmp_path: Path) -> None:
    marked = replace(AUX, producer_snapshot=b"a line of JSON" * 10)
    _, entry = copied(memory, tmp_path, "encrypted", aux=marked)
    assert not any(b"a line" in data for data in memory.objects.values())
    # Two copies of the same bytes have nothing in common.
    first = memory.objects[entry.log_key]
    _, entry = copied(memory, tmp_path, "encrypted", aux=marked)
    assert memory.objects[entry.log_key][:100] != first[:100]


@pytest.mark.parametrize("form", FORMS)
def test_every_one_of_1000_changes_of_stored_bytes_is_found(
    memory: Any, tmp_path: Path, form: str
) -> None:
    """At random places of both objects: changed bytes, cut ends, and bytes that are added."""
    manager, entry = copied(memory, tmp_path, form, LINES[: PIECE_BYTES + 10_000])
    rng = random.Random(form)
    changes: tuple[Callable[[bytearray, int], None], ...] = (
        lambda body, at: body.__setitem__(at, body[at] ^ 1 << rng.randrange(8)),
        lambda body, at: body.__setitem__(at, body[at] ^ rng.randrange(1, 256)),
        lambda body, at: body.__delitem__(at),
        lambda body, at: body.insert(at, rng.randrange(256)),
    )
    for number in range(1000):
        # The auxiliary object is small, so it gets its own share of the changes.
        key = entry.log_key if number % 2 else entry.aux_key
        kept = memory.objects[key]
        body = bytearray(kept)
        changes[number // 2 % len(changes)](body, rng.randrange(len(body)))
        memory.put(key, bytes(body))
        if bytes(body) != kept:
            assert is_found(manager, memory, entry), (key, number)
        memory.objects[key] = kept
    assert not is_found(manager, memory, entry)


def is_found(manager: RemoteStorageManager, store: MemoryStore, entry: SegmentEntry) -> bool:
    """Return whether a reader of the whole segment, which knows the listed size, finds damage."""
    if len(store.objects[entry.log_key]) != stored_log_bytes(entry):
        return True
    try:
        aux = manager.fetch_aux(entry)
        log = manager.fetch(entry, 0, entry.size_bytes, aux.frames)
    except ObjectDamaged:
        return True
    return wrong_piece(log, 0, aux.pieces, aux.algorithm) is not None


def test_frames_cannot_change_places(memory: Any, tmp_path: Path) -> None:
    manager, entry = copied(memory, tmp_path, "encrypted")
    aux = manager.fetch_aux(entry)
    assert aux.frames is not None
    first, second = aux.frames.starts[1], aux.frames.starts[2]
    stored = memory.objects[entry.log_key]
    swapped = stored[first:second] + stored[:first] + stored[second:]
    memory.put(entry.log_key, swapped)
    with pytest.raises(ObjectDamaged, match="does not decrypt with the segment's key"):
        manager.fetch(entry, 0, 10, aux.frames)


def test_objects_of_another_segment_are_refused(memory: Any, tmp_path: Path) -> None:
    manager, entry = copied(memory, tmp_path, "encrypted")
    other = replace(TierPartition().segment(0, 9, size_bytes=len(LINES)), segment_id=uuid.uuid4())
    other = replace(other, key=entry.key.replace("/3/", "/4/") + "x", digests=entry.digests)
    memory.objects[other.aux_key] = memory.objects[entry.aux_key]
    with pytest.raises(ObjectDamaged, match="its key cannot be decrypted with key 'k1'"):
        manager.fetch_aux(other)


def test_a_missing_key_is_named_and_the_segment_is_readable_once_it_is_back(
    memory: Any, tmp_path: Path
) -> None:
    _, entry = copied(memory, tmp_path, "encrypted")
    for keys in (NO_KEYS, KeyRing.parse(TWO)):
        with pytest.raises(
            EncryptionKeyMissing, match=r"key 'k1'.* Add the line of 'k1'.*--encryption-keys"
        ) as caught:
            RemoteStorageManager({"": memory}, keys).fetch(entry, 0, 5)
        assert not caught.value.retriable
    assert RemoteStorageManager({"": memory}, NEW).fetch(entry, 0, 5) == LINES[:5]


def test_a_key_with_other_bytes_is_not_the_key(memory: Any, tmp_path: Path) -> None:
    """The segment is not damaged: it would be given up or swept otherwise."""
    _, entry = copied(memory, tmp_path, "encrypted")
    other = KeyRing.parse(TWO.replace("k2", "k1"))
    with pytest.raises(EncryptionKeyMissing, match="no line of 'k1' has the bytes"):
        RemoteStorageManager({"": memory}, other).fetch(entry, 0, 5)
    with pytest.raises(EncryptionKeyMissing):
        origin_version([memory], other, entry.key)
    with pytest.raises(EncryptionKeyMissing):
        read_origin(memory, other, "", entry.key, len(memory.objects[entry.log_key]))


def test_segments_of_both_bytes_of_an_id_are_readable_with_both_lines(
    memory: Any, tmp_path: Path
) -> None:
    """New segments had other bytes until the mistake was noticed, and no id can be changed."""
    _, entry = copied(memory, tmp_path, "encrypted")
    changed = TWO.replace("k2", "k1")
    later = TierPartition().segment(10, 19, size_bytes=len(LINES))
    data = SegmentData(tmp_path / "log", len(LINES), AUX)
    done = RemoteStorageManager({"": memory}, KeyRing.parse(changed)).copy_segment(later, data)
    later = replace(later, custom_metadata=done.custom_metadata, digests=done.digests)
    for text in (ONE + changed, changed + ONE):
        manager = RemoteStorageManager({"": memory}, KeyRing.parse(text))
        assert manager.fetch(entry, 0, 5) == manager.fetch(later, 0, 5) == LINES[:5]


@pytest.mark.parametrize("form", FORMS)
def test_an_origin_has_the_entry_of_the_manifest(memory: Any, tmp_path: Path, form: str) -> None:
    manager, entry = copied(memory, tmp_path, form)
    size = len(memory.objects[entry.log_key])
    keys = manager.keys
    found = read_origin(memory, keys, "", entry.key, size)
    assert found is not None
    origin, finished = found
    assert (origin.head_version, finished.digests) == (7, entry.digests)
    assert finished.custom_metadata == entry.custom_metadata
    assert read_origin(memory, keys, "", entry.key, size - 1) is None
    assert origin_version([memory], keys, entry.key) == 7
    if keys is not NO_KEYS:
        # A sweep must not take a segment that it cannot read for an unreadable one.
        with pytest.raises(EncryptionKeyMissing):
            origin_version([memory], NO_KEYS, entry.key)


def test_a_packed_aux_has_its_frames() -> None:
    writer = FrameWriter(None, AUX.algorithm, is_compressed=True)
    list(writer.encode([LINES]))
    aux = replace(AUX, frames=writer.finish(), pieces=(digest_of(b"", AUX.algorithm),))
    assert unpack(pack(aux), "x") == aux


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k1 AAAA", "line 1 must have an id"),
        ("# c\n\nk1: AAAA", "line 3 must have a colon and 32 bytes"),
        (f"{ONE}k/1: {'A' * 43}=", "line 2 must have an id"),
        (ONE + ONE, "line 2 must have another key than key 1"),
        (ONE.replace("A", "*"), "32 bytes in base64"),
        ("".join(f"{n}: {'A' * 43}=\n" for n in range(101)), "more than 100 keys"),
        # Segments would be stored in the clear although a Secret is named.
        ("", "has no key"),
        ("# the key will follow\n\n", "has no key"),
        ("none\n", "has no key"),
        (f"{ONE}none\n", "line 2 must have"),
        (f"k1: {ARN} AAAA*", "line 1 must have the ARN of a key of KMS and a CiphertextBlob"),
        (f"k1: {ARN}", "line 1 must have the ARN of a key of KMS and a CiphertextBlob"),
        ("k1: arn:aws:kms:evil.example/:111122223333:key/a AAAA", "the ARN of a key of KMS"),
    ],
)
def test_the_text_of_keys_is_checked(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as caught:
        KeyRing.parse(text)
    assert "AAAA" not in str(caught.value)


def test_lines_of_kms_are_kept_as_they_are() -> None:
    text = f"k2: {ARN} AAAA\n{ONE}"
    assert KeyRing.parse(text).to_text() == text
    assert KeyRing.parse(text).active_id == "k2"


def test_the_first_line_is_the_active_key() -> None:
    assert (NEW.active_id, OLD.active_id, NO_KEYS.active_id) == ("k2", "k1", "")
    assert KeyRing.parse(NEW.to_text()) == NEW
    assert "AAAA" not in repr(NEW)


def test_segments_are_in_the_clear_after_a_first_line_without_a_key(
    memory: Any, tmp_path: Path
) -> None:
    """The keys that follow decrypt, so encryption can end before the last encrypted segment."""
    _, entry = copied(memory, tmp_path, "encrypted")
    ring = KeyRing.parse(f"# stopped\nnone\n{ONE}")
    assert (ring.active_id, KeyRing.parse(ring.to_text())) == ("", ring)
    manager = RemoteStorageManager({"": memory}, ring)
    assert manager.fetch(entry, 0, 5) == LINES[:5]
    later = TierPartition().segment(10, 19, size_bytes=len(LINES))
    manager.copy_segment(later, SegmentData(tmp_path / "log", len(LINES), AUX))
    assert memory.objects[later.log_key] == LINES
