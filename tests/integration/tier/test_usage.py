"""Usage of a tier of two buckets in a real MinIO, against what MinIO's own client lists."""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.integration.tier.test_unfinished_uploads import client_of
from tidemark.tier.metadata.head import Claim, new_head
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.metadata.transitions import finish_copy, start_copy
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import SegmentData
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tiering import Tiering, TieringState
from tidemark_pipeline.usage.figures import DISABLE_DELETE, Policy
from tidemark_pipeline.usage.measurement import measure

BY = Claim(1, 0)
DAY_MS = 86_400_000
PARTITIONS = 2


def filled(tier: Tier, topic: TopicObject, folder: Path) -> Iterator[SegmentEntry]:
    """Copy twelve segments per partition, one for each day, each larger than the last."""
    tier.topics.put(topic)
    for partition in range(PARTITIONS):
        loaded = tier.manifests.create(
            new_head(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                cluster_id="c",
                leader_epoch=1,
                tiering=Tiering(TieringState.ENABLED, 0),
                broker_id=1,
                log_start_offset=0,
            )
        )
        for number in range(12):
            file = folder / "segment.log"
            file.write_bytes(bytes(1000 + number))
            # One segment per day, so that usage by day has one row for each.
            entry = new_segment(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                segment_id=uuid.uuid4(),
                start_offset=number,
                end_offset_inclusive=number,
                max_timestamp_ms=number * DAY_MS,
                size_bytes=1000 + number,
                broker_id=1,
                event_time_ms=0,
                leader_epochs=[(1, 0)],
                leader_epoch=1,
                tiered_epoch=0,
            )
            loaded = tier.manifests.commit(loaded, partial(start_copy, by=BY, entry=entry))
            aux = Aux(
                offset_index=b"i" * 8,
                time_index=b"t" * 12,
                leader_epochs=b"e" * number,
                producer_snapshot=b"",
            )
            copied = tier.segments.copy_segment(entry, SegmentData(file, entry.size_bytes, aux))
            loaded = tier.manifests.commit(
                loaded,
                partial(
                    finish_copy,
                    by=BY,
                    entry=entry,
                    custom_metadata=copied.custom_metadata,
                    digests=copied.digests,
                ),
            )
            yield entry


def test_usage_matches_what_minio_lists(config: S3Config, tmp_path: Path) -> None:
    tier = open_tier(config)
    # Four entries per page: the figures have to include pages.
    tier = replace(tier, manifests=ManifestStore(tier.store, page_entries=4))
    topic = TopicObject(topic_id=uuid.uuid4(), name="t", cluster_id="c", partitions=PARTITIONS)
    entries = {entry.key: entry for entry in filled(tier, topic, tmp_path)}
    # An object that no manifest names, five bytes long.
    unnamed_key = f"{next(iter(entries))[:-22]}{'A' * 22}.log"
    tier.segments.stores[config.buckets[1]].put(unnamed_key, b"12345")

    # The expected figures come from MinIO's own listing, not from the manifests.
    expected: Counter[tuple[str, str, str]] = Counter()
    listed: Counter[str] = Counter()
    old = 0
    for bucket in config.buckets:
        for item in client_of(config).list_objects(
            bucket, f"{config.prefix}/data/", recursive=True
        ):
            key = item.object_name.removeprefix(f"{config.prefix}/")
            listed[bucket] += item.size
            if key == unnamed_key:
                continue
            entry = entries[key[:-4]]
            day = f"1970-01-{entry.start_offset + 1:02}"
            expected[key.split("/")[2], bucket, day] += item.size
            # Five of twelve days are older than six days at the time of the last one.
            old += item.size if entry.start_offset < 5 else 0

    usage = measure(
        tier,
        [topic],
        all_topics=True,
        by=["partition", "bucket", "day"],
        policies=[Policy("retention", retention_ms=6 * DAY_MS), DISABLE_DELETE],
        now_ms=11 * DAY_MS,
    )
    (found,) = usage.topics
    assert {row: of.stored_bytes for row, of in found.rows.items()} == expected
    assert {bucket: of.size_bytes for bucket, of in found.listed.items()} == listed
    assert {bucket: of.unnamed_bytes for bucket, of in found.listed.items()} == {
        config.buckets[0]: 0,
        config.buckets[1]: 5,
    }
    # Both policies would free exactly these bytes.
    assert found.freed == {"retention": old, "disable-delete": expected.total()}
    assert all(listed[bucket] for bucket in config.buckets), "segments are in both"
