"""A tier of the version before BLAKE3 stays usable: its segments have SHA-256 digests for ever.

``tier_of_format_2.json`` has the objects of that version, byte for byte, in base64. Five segments
of six records each are plain, compressed, encrypted and compressed, plain, and plain. Two sealed
pages have two entries each. Their digests are those of heads and pages of format 2.
"""

import base64
import json
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from small_tier import SmallTier
from test_audit import audited
from test_segment_reader import read

from tidemark.records.batch import iter_headers
from tidemark.tier.maintenance.head_repair import check_against_objects, restore_pages
from tidemark.tier.metadata.layout import LOG_SUFFIX, head_key
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.queries import live_segments
from tidemark.tier.metadata.segment import DigestAlgorithm, SegmentEntry
from tidemark.tier.open import open_tier
from tidemark.tier.segments.integrity import ObjectDamaged, list_batches, verified_batches
from tidemark.tier.segments.segment_origin import read_origin
from tidemark.tier.stores.key_ring import KeyRing
from tidemark_broker.remote_log.segment_reader import Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings

TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
#: Decrypts the encrypted segment. New ones are in the clear.
KEYS = KeyRing.parse(f"none\nk1: {'A' * 43}=")
SMALL = [b"plain %d" % number for number in range(6)]
LARGE = [b"%d" % number * 60_000 for number in range(6)]
RECORDS = list(enumerate(SMALL + LARGE + LARGE + SMALL + SMALL))
SHA256, BLAKE3 = DigestAlgorithm
OBJECTS = {
    key: base64.b64decode(text)
    for key, text in json.loads(
        Path(__file__).with_name("tier_of_format_2.json").read_text()
    ).items()
}


@pytest.fixture
def older(tmp_path: Path) -> SmallTier:
    for key, data in OBJECTS.items():
        path = tmp_path / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return SmallTier(tmp_path / "tier", TOPIC_ID, keys=KEYS)


def algorithms(tier: SmallTier) -> list[DigestAlgorithm]:
    return [entry.digests.algorithm for entry in entries(tier) if entry.digests is not None]


def entries(tier: SmallTier) -> list[SegmentEntry]:
    """Return the live entries as another process reads them."""
    opened = open_tier(tier.storage)
    head = opened.manifests.load(TOPIC_ID, 0).head
    return list(live_segments(head, opened.manifests.pages(TOPIC_ID, 0)))


def read_log(tier: SmallTier, entry: SegmentEntry) -> bytes:
    """Read and verify a whole log, as an audit and a merge do."""
    aux = tier.tier.segments.fetch_aux(entry)
    log = tier.tier.segments.fetch(entry, 0, entry.size_bytes, aux.frames)
    batches = verified_batches(entry, [log], aux.pieces, "the tier", list_batches)
    return b"".join(
        data[: headers[-1][0] + headers[-1][1].size_bytes] for _, data, headers in batches
    )


def test_segments_of_every_form_are_read_by_spark_and_audits(older: SmallTier) -> None:
    assert algorithms(older) == [SHA256] * 5
    assert read(older) == RECORDS
    report = audited(older)
    assert (report.findings, report.segments) == ((), 5)


def test_segments_of_every_form_are_read_by_a_broker(older: SmallTier) -> None:
    for entry in older.entries:
        reader = SegmentReader(older.tier, Caches(RemoteSettings(chunk_bytes=1)), entry)
        data, next_offset, _ = reader.read(entry.start_offset, 10**6)
        assert next_offset == entry.end_offset_inclusive + 1
        assert next(iter_headers(bytes(data)))[1].base_offset == entry.start_offset


@pytest.mark.parametrize("number", range(5))
def test_damage_of_every_form_is_found(older: SmallTier, number: int) -> None:
    entry = older.entries[number]
    for key in (entry.log_key, entry.aux_key):
        path = older.path / key
        kept = path.read_bytes()
        for at in range(0, len(kept), 7):
            path.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
            with pytest.raises(ObjectDamaged):
                read_log(older, entry)
        path.write_bytes(kept)
    assert read_log(older, entry)


def test_an_auxiliary_object_alone_has_the_digests_of_its_version(older: SmallTier) -> None:
    """A repair and a restore make entries of complete copies without a manifest."""
    for entry in older.entries:
        size = len(OBJECTS[entry.log_key])
        found = read_origin(older.tier.store, KEYS, "", entry.key, size)
        assert found is not None
        assert found[1] == entry
    assert check_against_objects(older.tier, TOPIC_ID, 0).head == older.loaded.head


def test_the_next_copy_has_the_newest_digests_beside_older_ones(older: SmallTier) -> None:
    older.tier = replace(older.tier, manifests=ManifestStore(older.tier.store, page_entries=2))
    for _ in range(3):
        older.copy(SMALL)
    # The head and one new page have entries of both kinds. Older pages are not written again.
    assert algorithms(older) == [SHA256] * 5 + [BLAKE3] * 3
    head = json.loads((older.path / head_key(TOPIC_ID, 0)).read_bytes())
    assert (head["formatVersion"], len(head["pages"])) == (3, 3)
    (new,) = [ref[0] for ref in head["pages"] if f"{ref[0]}.json" not in "".join(OBJECTS)]
    page = older.tier.manifests.pages(TOPIC_ID, 0)[new]
    assert [e.digests and e.digests.algorithm for e in page.entries] == [SHA256, BLAKE3]
    assert all(
        (older.path / key).read_bytes() == data for key, data in OBJECTS.items() if "pages/" in key
    )
    count = len(RECORDS)
    copies = [(count + number, value) for number, value in enumerate(SMALL * 3)]
    assert read(older) == RECORDS + copies
    assert audited(older).findings == ()


def test_segments_of_both_kinds_are_merged_into_a_newest_one(older: SmallTier) -> None:
    last, copied = older.entries[-1], older.copy(SMALL)
    older.merge(last, entries(older)[-1])
    assert algorithms(older) == [SHA256] * 4 + [BLAKE3]
    rows = [*RECORDS, *((copied.start_offset + n, value) for n, value in enumerate(SMALL))]
    assert read(older) == rows
    assert audited(older).findings == ()


def test_a_damaged_older_segment_is_not_merged(older: SmallTier) -> None:
    last = older.entries[-1]
    older.copy(SMALL)
    path = older.path / last.log_key
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ObjectDamaged, match=rf"{last.log_key}.*digest differs at byte 0"):
        older.merge(last, entries(older)[-1])


def test_a_lost_page_of_older_segments_is_rewritten(older: SmallTier) -> None:
    """With the entries that it had, in the newest format."""
    expected = entries(older)
    for key in OBJECTS:
        if key.startswith("pages/"):
            (older.path / key).unlink()
    older.tier = open_tier(older.storage)
    restore_pages(older.tier, older.loaded.head)
    assert entries(older) == expected


def test_an_older_topic_is_restored_and_continued(older: SmallTier) -> None:
    end = older.restore()
    assert end == len(RECORDS)
    older.copy(SMALL)
    assert algorithms(older) == [SHA256] * 5 + [BLAKE3]
    assert audited(older).findings == ()


def test_the_objects_are_of_the_older_version() -> None:
    versions = Counter(
        json.loads(data)["formatVersion"]
        for key, data in OBJECTS.items()
        if key[:5] in ("heads", "pages")
    )
    assert versions == {2: 3}
    plain = [data for key, data in OBJECTS.items() if key.endswith(".aux") and data[:4] == b"TMAX"]
    assert Counter(data[5] for data in plain) == {2: 3, 3: 1}
    assert sum(key.endswith(LOG_SUFFIX) for key in OBJECTS) == 5
