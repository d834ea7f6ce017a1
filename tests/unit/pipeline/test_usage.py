"""Usage of a topic in the tier: figures from manifests equal the sizes on disk."""

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from small_tier import BY, SmallTier

from tests.unit.tier.conftest import MemoryStore, TierPartition
from tests.unit.tier.conftest import memory as memory  # noqa: PLC0414 - a fixture
from tests.unit.tier.conftest import place as place  # noqa: PLC0414 - a fixture
from tests.unit.tier.test_manifest import ONE, manifests, start
from tests.unit.tier.test_sweeper import tier_on
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.layout import head_key
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.segments.remote_storage_manager import encode_custom_metadata
from tidemark_pipeline.usage import figures as usage_figures
from tidemark_pipeline.usage.figures import (
    DISABLE_DELETE,
    DISABLE_RETAIN,
    OTHER,
    Policy,
    Usage,
    UsageFigures,
)
from tidemark_pipeline.usage.measurement import UNKNOWN, measure
from tidemark_pipeline.usage.text import json_text, prometheus_text

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
VALUES = [b"value-%d" % number for number in range(9)]


@pytest.fixture
def paged(small_tier: SmallTier) -> SmallTier:
    """Return a tier whose manifest has pages of two entries."""
    store = ManifestStore(small_tier.tier.store, page_entries=2)
    small_tier.tier = replace(small_tier.tier, manifests=store)
    return small_tier


def measured(small: SmallTier, *policies: Policy, **options: Any) -> Usage:
    topic = replace(small.tier.reader.find_topic("t"), config=options.pop("config", {}))
    options.setdefault("all_topics", True)
    chosen = policies or (DISABLE_DELETE, DISABLE_RETAIN)
    return measure(small.tier, [topic], policies=chosen, now_ms=NOW_MS, **options)


def on_disk(small: SmallTier, *entries: SegmentEntry) -> int:
    """Return the size of the entries' objects in bytes."""
    keys = [key for entry in entries for key in (entry.log_key, entry.aux_key)]
    return sum((small.path / key).stat().st_size for key in keys)


def logs(small: SmallTier, *entries: SegmentEntry) -> int:
    return sum((small.path / entry.log_key).stat().st_size for entry in entries)


def test_stored_bytes_equal_the_objects_on_disk(paged: SmallTier) -> None:
    entries = [paged.copy(VALUES[:count]) for count in (9, 1, 4, 7, 2)]
    assert paged.loaded.head.pages
    usage = measured(paged)
    (topic,) = usage.topics
    assert topic.buckets == {
        "": UsageFigures(
            segments=5, log_bytes=logs(paged, *entries), stored_bytes=on_disk(paged, *entries)
        )
    }
    assert topic.rows == {("",): topic.buckets[""]}
    listed = topic.listed[""]
    assert (listed.objects, listed.size_bytes) == (10, on_disk(paged, *entries))
    assert (listed.unnamed, listed.unknown, usage.passed_over) == (0, 0, 0)
    assert topic.freed == {"disable-delete": on_disk(paged, *entries), "disable-retain": 0}


def test_rows_are_grouped_as_requested_and_days_are_those_of_retention(
    paged: SmallTier,
) -> None:
    first, second = (paged.copy(VALUES, newest_ms=DAY_MS + ms) for ms in (0, DAY_MS - 1))
    third = paged.copy(VALUES[:3], newest_ms=365 * DAY_MS)
    # -1 is no timestamp, so that the time of the copy counts.
    copied = paged.copy(VALUES, newest_ms=-1)
    # No calendar has the day of this timestamp.
    never = paged.copy(VALUES, newest_ms=2**63 - 1)
    (topic,) = measured(paged, by=["day", "partition"]).topics
    assert {row: (of.segments, of.stored_bytes) for row, of in topic.rows.items()} == {
        ("0", "1970-01-02"): (2, on_disk(paged, first, second)),
        ("0", "1971-01-01"): (1, on_disk(paged, third)),
        ("0", "1970-01-01"): (1, on_disk(paged, copied)),
        ("0", UNKNOWN): (1, on_disk(paged, never)),
    }


def test_time_retention_deletes_older_segments_up_to_the_first_that_stays(paged: SmallTier) -> None:
    ages_days = (3, 2, 10, 1)
    entries = [paged.copy(VALUES, newest_ms=NOW_MS - age * DAY_MS) for age in ages_days]
    # Retention stops at the first segment that stays, even if later ones are older.
    for kept_days, deleted in ((3, 0), (2, 1), (1, 3), (0, 4)):
        policy = Policy("retention", retention_ms=kept_days * DAY_MS)
        freed = measured(paged, policy).topics[0].freed
        assert freed == {"retention": on_disk(paged, *entries[:deleted])}, kept_days


def test_size_retention_deletes_segments_wholly_beyond_the_limit_by_log_bytes(
    paged: SmallTier,
) -> None:
    entries = [paged.copy(VALUES[:count]) for count in (9, 1, 4, 7)]
    for deleted in range(5):
        # The limit is what remains after the deletion of the first segments.
        limit = logs(paged, *entries[deleted:])
        for more, expected in ((0, deleted), (logs(paged, *entries) + 1, 0)):
            policy = Policy("retention", retention_bytes=limit + more)
            freed = measured(paged, policy).topics[0].freed["retention"]
            assert freed == on_disk(paged, *entries[:expected]), (deleted, more)


def test_unchanged_limit_is_the_topics_own(paged: SmallTier) -> None:
    entries = [paged.copy(VALUES, newest_ms=NOW_MS - 9 * DAY_MS) for _ in range(3)]
    policy = Policy("retention", retention_bytes=-1)
    for config, deleted in (
        ({}, 0),
        ({"retention.ms": str(DAY_MS)}, 3),
        ({"retention.ms": str(DAY_MS), "cleanup.policy": "compact"}, 0),
        ({"retention.ms": "soon"}, 0),
    ):
        freed = measured(paged, policy, config=config).topics[0].freed
        assert freed == {"retention": on_disk(paged, *entries[:deleted])}, config


def test_a_marked_segment_frees_space_only_once_it_is_deleted(paged: SmallTier) -> None:
    entries = [paged.copy(VALUES) for _ in range(5)]
    paged.expire_to(entries[3].start_offset)
    (topic,) = measured(paged).topics
    figures = topic.buckets[""]
    assert (figures.segments, figures.stored_bytes) == (2, on_disk(paged, *entries[3:]))
    assert figures.pending_segments == 3
    assert figures.pending_bytes == on_disk(paged, *entries[:3])
    assert topic.freed["disable-delete"] == on_disk(paged, *entries[3:])
    listed = topic.listed[""]
    assert listed.unnamed_bytes == 0, "they are named until they are deleted"
    assert listed.size_bytes == figures.stored_bytes + figures.pending_bytes


def test_a_copy_under_way_is_counted_and_has_no_bytes_yet(paged: SmallTier) -> None:
    paged.copy(VALUES)
    # The copy has been started, and not finished.
    entry = TierPartition(topic="t", topic_id=paged.topic_id, partition=0).segment(9, 17)
    paged.tier.manifests.commit(paged.loaded, lambda head: transitions.start_copy(head, BY, entry))
    (topic,) = measured(paged).topics
    assert sum(bucket.copying for bucket in topic.buckets.values()) == 1
    assert sum(bucket.segments for bucket in topic.buckets.values()) == 1


def test_unreferenced_objects_are_reported_with_bytes_and_owner(paged: SmallTier) -> None:
    named = paged.copy(VALUES)
    unreferenced = {
        # An unnamed segment, an unknown partition, an unknown topic, and no segment at all follow.
        replace_id(named.log_key): b"12345",
        named.log_key.replace("/0/", "/7/"): b"123",
        f"data/other-{'A' * 22}/0/{0:020}-{'A' * 22}.log": b"1",
        "data/photo.jpeg": b"12",
    }
    for key, body in unreferenced.items():
        (paged.path / key).parent.mkdir(parents=True, exist_ok=True)
        (paged.path / key).write_bytes(body)
    usage = measured(paged)
    listed = usage.topics[0].listed[""]
    assert (listed.unnamed, listed.unnamed_bytes) == (1, 5)
    assert (listed.unknown, listed.unknown_bytes) == (1, 3)
    assert listed.size_bytes == on_disk(paged, named) + 5 + 3
    assert usage.unowned is not None
    unowned = usage.unowned.listed[""]
    assert (unowned.objects, unowned.size_bytes, unowned.unknown_bytes) == (2, 3, 3)
    by_name = measured(paged, all_topics=False)
    assert by_name.unowned is None
    assert by_name.topics[0].listed[""] == listed


def replace_id(key: str) -> str:
    return f"{key[:-26]}{'B' * 21}A.log"


def test_an_unreadable_manifest_is_reported_and_the_others_are_counted(
    paged: SmallTier,
) -> None:
    entry = paged.copy(VALUES)
    (paged.path / head_key(paged.topic_id, 1)).write_text("{}")
    usage = measured(paged)
    assert usage.passed_over == 1
    assert head_key(paged.topic_id, 1) in usage.troubles[0]
    assert usage.topics[0].buckets[""].stored_bytes == on_disk(paged, entry)


def test_head_is_read_again_if_a_page_was_dropped(
    paged: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the pages have been counted by then, and none may be counted twice."""
    entries = [paged.copy(VALUES) for _ in range(9)]
    load = paged.tier.manifests.load
    before = load(paged.topic_id, 0)
    assert len(before.head.pages) > 2
    pages = (*before.head.pages[:2], replace(before.head.pages[2], name="00000009-gone"))
    stale = replace(before, head=replace(before.head, pages=pages))
    answers = iter([before, stale])  # for the first two requests
    monkeypatch.setattr(
        type(paged.tier.manifests), "load", lambda _, *of: next(answers, None) or load(*of)
    )
    (topic,) = measured(paged).topics
    assert topic.buckets[""].stored_bytes == on_disk(paged, *entries)
    assert topic.freed["disable-delete"] == on_disk(paged, *entries)


METADATA = {
    # The log of each segment has 100 bytes.
    "none that tells": (b"m", (UNKNOWN, 100, 1)),
    "below zero": (encode_custom_metadata("b", -7), ("b", 100, 1)),
    "beyond any object": (encode_custom_metadata("b", 1 << 60), ("b", 100, 1)),
    "infinite": (b'{"n":Infinity}', (UNKNOWN, 100, 1)),
    "as it should be": (encode_custom_metadata("b", 130), ("b", 130, 0)),
}


@pytest.mark.parametrize("name", METADATA)
def test_unusable_custom_metadata_counts_the_log(
    name: str, memory: MemoryStore, place: TierPartition
) -> None:
    metadata, (bucket, stored, unmeasured) = METADATA[name]
    usage = of_memory(memory, place, [metadata])
    (figures,) = usage.topics[0].buckets.items()
    assert figures[0] == bucket
    assert (figures[1].stored_bytes, figures[1].unmeasured) == (stored, unmeasured)


def of_memory(
    memory: MemoryStore, place: TierPartition, metadata: list[bytes], **options: Any
) -> Usage:
    """Return the usage of segments of 100 bytes with this custom metadata."""
    store = manifests(memory)
    loaded = store.create(place.head())
    for at, item in enumerate(metadata):
        entry = place.segment(at, at, max_timestamp_ms=at * DAY_MS)
        loaded = store.commit(loaded, start(entry))
        loaded = store.commit(
            loaded,
            lambda head, entry=entry, item=item: transitions.finish_copy(  # type: ignore[misc]
                head, ONE, entry, item
            ),
        )
    topic = TopicObject(topic_id=place.topic_id, name=place.topic, cluster_id="c", partitions=4)
    return measure(tier_on(memory), [topic], all_topics=True, now_ms=NOW_MS, **options)


def test_rows_and_buckets_beyond_the_limit_are_summed(
    memory: MemoryStore, place: TierPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_figures, "ROWS_MAX", 4)
    monkeypatch.setattr(usage_figures, "BUCKETS_MAX", 2)
    metadata = [encode_custom_metadata(f"b{at}", 10 + at) for at in range(8)]
    usage = of_memory(memory, place, metadata, by=["bucket", "day"])
    (topic,) = usage.topics
    assert set(topic.buckets) == {"b0", "b1", OTHER}
    assert (OTHER, OTHER) in topic.rows
    # The limit of four rows excludes the row that sums the others.
    assert len(topic.rows) <= 5
    assert usage.rows_left_out
    assert sum(of.stored_bytes for of in topic.rows.values()) == sum(range(10, 18))
    assert sum(of.stored_bytes for of in topic.buckets.values()) == sum(range(10, 18))


def test_json_and_metrics_have_the_same_figures(paged: SmallTier) -> None:
    entries = [paged.copy(VALUES, newest_ms=DAY_MS) for _ in range(2)]
    usage = measured(paged, by=["day"])
    found = json.loads(json_text(usage, now_ms=5))
    (topic,) = found["topics"]
    assert topic["rows"] == [
        {
            "day": "1970-01-02",
            "segments": 2,
            "logBytes": logs(paged, *entries),
            "storedBytes": on_disk(paged, *entries),
            "pendingSegments": 0,
            "pendingBytes": 0,
            "copying": 0,
            "unmeasured": 0,
        }
    ]
    assert topic["freed"] == {"disable-delete": on_disk(paged, *entries), "disable-retain": 0}
    assert topic["listed"][0]["bytes"] == on_disk(paged, *entries)
    text = prometheus_text(usage, now_ms=1_500_000).decode()
    stored = float(on_disk(paged, *entries))
    for sample in (
        "tidemark_usage_timestamp_seconds 1500.0",
        f'tidemark_usage_stored_bytes{{bucket="",topic="t"}} {stored}',
        f'tidemark_usage_freeable_bytes{{policy="disable-delete",topic="t"}} {stored}',
        'tidemark_usage_freeable_bytes{policy="disable-retain",topic="t"} 0.0',
        'tidemark_usage_unnamed_bytes{bucket="",topic=""} 0.0',
    ):
        assert sample in text


def test_two_topics_of_one_name_are_one_sample_and_two_rows(memory: MemoryStore) -> None:
    topics = []
    for number in (1, 2):
        one = TierPartition(topic_id=uuid.UUID(int=number), partition=0)
        usage = of_memory(memory, one, [encode_custom_metadata("b", number * 10)])
        topics += usage.topics
    usage.topics = topics
    assert len(json.loads(json_text(usage, now_ms=5))["topics"]) == 2
    text = prometheus_text(usage, now_ms=5).decode()
    assert 'tidemark_usage_stored_bytes{bucket="b",topic="flights"} 30.0' in text
