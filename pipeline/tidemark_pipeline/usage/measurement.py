"""Bytes of a topic in the tier, by partition, bucket and day, and the bytes that another policy
would free.

Two sources are compared. Manifests contain what was copied to which bucket: the custom metadata of
each segment has the stored bytes, indexes included (the motive of KIP-917), which the log's size
does not show. LIST shows the objects, also those that no manifest names.

Only manifests are read, no segments. A million segments are some 4,000 pages, which are read one
after the other in a few minutes of plain Python, without a Spark session. Memory is bounded by the
cache of pages, a page of LIST, and the requested rows, which have a limit.
"""

import datetime as dt
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tidemark.tier.maintenance.key_references import ReferenceClassifier
from tidemark.tier.metadata.head import Head, ManifestError
from tidemark.tier.metadata.layout import DATA_PREFIX, topic_data_prefix
from tidemark.tier.metadata.manifest import PageCache, PageNotFound
from tidemark.tier.metadata.queries import present_entries, totals
from tidemark.tier.metadata.retention import Expiring, newest_ms
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.segments.remote_storage_manager import decode_custom_metadata
from tidemark.tier.stores.objects import ObjectInfo, StoreUnavailable
from tidemark_pipeline.usage import figures as usage_figures
from tidemark_pipeline.usage.figures import (
    DIMENSIONS,
    DISABLE_DELETE,
    DISABLE_RETAIN,
    NO_TOPIC,
    OTHER,
    ListedObjects,
    Policy,
    TopicUsage,
    Usage,
    UsageFigures,
)

KEYS_AT_ONCE = 1000
#: The bucket in custom metadata of another storage manager, and the day outside the calendar.
UNKNOWN = "unknown"
_HEAD_READS = 3
_DAY_MS = 86_400_000
#: Upper bound of plausible stored bytes: no store accepts an object of this size.
_BYTES_MAX = 1 << 48


def measure(
    tier: Tier,
    topics: Sequence[TopicObject],
    *,
    all_topics: bool,
    by: Collection[str] = ("bucket",),
    policies: Sequence[Policy] = (DISABLE_DELETE, DISABLE_RETAIN),
    now_ms: int,
) -> Usage:
    """Return the bytes and segments of ``topics`` in the tier. Raises StoreUnavailable.

    ``all_topics``: these are all topics, so objects without a topic are counted as well. ``by``:
    some of DIMENSIONS, by which rows are divided. ``policies``: deletion policies whose freed bytes
    are computed. ``now_ms``: Unix time for retention by age.
    """
    # An object without a topic can only be recognised if every topic is listed.
    usage = Usage(
        [TopicUsage(topic.name, topic.topic_id) for topic in topics],
        TopicUsage("", NO_TOPIC) if all_topics else None,
        tuple(name for name in DIMENSIONS if name in by),
        tuple(policies),
    )
    # Every bucket has a row, so that an empty one is shown as 0.
    for owner in (*usage.topics, *filter(None, [usage.unowned])):
        owner.listed = {bucket: ListedObjects() for bucket in tier.segments.stores}
    _list(tier, usage)
    for topic, own in zip(topics, usage.topics, strict=True):
        # Bytes by policy are added for each partition's manifest.
        own.freed = {policy.name: 0 for policy in policies}
        for partition in tier.reader.partitions(topic.topic_id):
            _partition(tier, usage, topic, own, partition, now_ms)
    return usage


# ---------------------------------------------------------------- what LIST shows


def _list(tier: Tier, usage: Usage) -> None:
    """List the objects in each bucket and add their sizes to the usage of their topics.

    Objects that no manifest names, or in folders without a manifest, are also counted separately.
    """
    # Objects belong to topics by their folder. The classifier compares them with the manifests.
    naming = ReferenceClassifier(tier)
    owners = {_folder(topic): topic for topic in usage.topics}
    for bucket, store in tier.segments.stores.items():
        # With all topics this is one LIST of the data folder instead of one per topic.
        for folder, of in _folders(usage):
            for infos in _chunks(store.list(folder)):
                # Classified in chunks, so that memory does not grow with the number of objects.
                judged = naming.of_data(infos)
                for trouble in judged.troubles:
                    usage.trouble(trouble)
                for info in infos:
                    _listed(info, owners, of, bucket).add(info)
                for info in judged.unnamed:
                    _listed(info, owners, of, bucket).add_unnamed(info)
                for _, info in judged.unknown:
                    _listed(info, owners, of, bucket).add_unknown(info)


def _folders(usage: Usage) -> Iterator[tuple[str, TopicUsage]]:
    """Yield each folder to list, with the owner of objects that no other topic owns."""
    if usage.unowned is not None:
        yield DATA_PREFIX, usage.unowned
    else:
        yield from ((_folder(topic), topic) for topic in usage.topics)


def _folder(topic: TopicUsage) -> str:
    return topic_data_prefix(topic.name, topic.topic_id)


def _listed(
    info: ObjectInfo, owners: Mapping[str, TopicUsage], otherwise: TopicUsage, bucket: str
) -> ListedObjects:
    """Return the count that an object belongs to, by its folder alone."""
    # The folder ends at the second slash: data/<topic>-<id>/.
    folder = info.key[: info.key.find("/", len(DATA_PREFIX)) + 1]
    return owners.get(folder, otherwise).listed[bucket]


def _chunks(infos: Iterable[ObjectInfo]) -> Iterator[Sequence[ObjectInfo]]:
    iterator = iter(infos)
    while chunk := list(itertools.islice(iterator, KEYS_AT_ONCE)):
        yield chunk


# ---------------------------------------------------------------- what manifests say


def _partition(
    tier: Tier, usage: Usage, topic: TopicObject, own: TopicUsage, partition: int, now_ms: int
) -> None:
    """Add one partition's segments to the usage; record a problem if its manifest is unreadable."""
    trouble = ""
    for _ in range(_HEAD_READS):
        try:
            head = tier.manifests.load(topic.topic_id, partition).head
            pages = tier.manifests.pages(topic.topic_id, partition)
            rows, freed = _measured(head, pages, usage, topic, now_ms)
        except PageNotFound as error:
            trouble = str(error)  # a newer head no longer names the page: read it again
            continue
        except ManifestError as error:
            trouble = str(error)
            break
        # Figures are added only after the last page, so that a retry counts nothing twice.
        for (bucket, day), figures in rows.items():
            _add(usage, own, partition, bucket, day, figures)
        for name, size_bytes in freed.items():
            own.freed[name] += size_bytes
        return
    usage.trouble(trouble)


def _measured(
    head: Head, pages: PageCache, usage: Usage, topic: TopicObject, now_ms: int
) -> tuple[dict[tuple[str, str], UsageFigures], dict[str, int]]:
    """Return the figures of one manifest, and the bytes that each policy would free.

    Figures are by (bucket, day); the day is "" unless the usage is divided by day. Freed bytes are
    by policy name. Raises PageNotFound if the manifest was replaced meanwhile.
    """
    rows: dict[tuple[str, str], UsageFigures] = {}
    freed = {policy.name: 0 for policy in usage.policies}
    # Retention deletes the oldest segments first until its limits are met, so each policy tracks
    # its own progress through the segments.
    expiring = {
        policy.name: Expiring(limits, all_bytes=totals(head, pages).live_bytes, now_ms=now_ms)
        for policy in usage.policies
        if (limits := policy.limits_for(topic)) is not None
    }
    by_day = "day" in usage.by
    for entry, state in present_entries(head, pages):
        bucket, stored_bytes = _stored(entry)
        key = usage.bucket(bucket), _day(entry) if by_day else ""
        # Beyond the limit of rows, further rows are summed in one.
        if key not in rows and len(rows) >= usage_figures.ROWS_MAX:
            usage.rows_left_out = True
            key = OTHER, OTHER
        figures = rows.setdefault(key, UsageFigures())
        # A copy that has not finished (KIP-405's COPY_SEGMENT_STARTED) has no size yet.
        if state is SegmentState.COPY_STARTED:
            figures.copying += 1
            continue
        # Segments of another storage manager have no stored size in their custom metadata
        # (KIP-917). The log size is the best estimate.
        known_bytes = entry.size_bytes if stored_bytes is None else stored_bytes
        # These segments are being deleted, so no policy frees them again.
        if state is SegmentState.DELETE_STARTED:
            figures.pending_segments += 1
            figures.pending_bytes += known_bytes
            continue
        figures.segments += 1
        figures.log_bytes += entry.size_bytes
        figures.stored_bytes += known_bytes
        figures.unmeasured += stored_bytes is None
        # Every live segment is offered to each policy, in offset order.
        for policy in usage.policies:
            rule = expiring.get(policy.name)
            if policy.deletes_all or (rule is not None and rule.takes(entry)):
                freed[policy.name] += known_bytes
    return rows, freed


def _add(
    usage: Usage, own: TopicUsage, partition: int, bucket: str, day: str, figures: UsageFigures
) -> None:
    own.buckets.setdefault(bucket, UsageFigures()).add(figures)
    values = {"partition": str(partition), "bucket": bucket, "day": day}
    row = tuple(values[name] for name in usage.by)
    usage.row(own, row).add(figures)


def _stored(entry: SegmentEntry) -> tuple[str, int | None]:
    """Return bucket and stored bytes; None if the custom metadata does not contain them."""
    if entry.custom_metadata is None:
        return UNKNOWN, None
    try:
        bucket, stored_bytes, _ = decode_custom_metadata(entry.custom_metadata)
    except StoreUnavailable:
        return UNKNOWN, None
    return bucket, stored_bytes if 0 <= stored_bytes < _BYTES_MAX else None


def _day(entry: SegmentEntry) -> str:
    """Return the UTC day of the newest record, which retention uses as well.

    Producers may write any timestamp, so the day may be outside the calendar.
    """
    try:
        date = dt.date(1970, 1, 1) + dt.timedelta(days=newest_ms(entry) // _DAY_MS)
    except OverflowError:
        return UNKNOWN
    return date.isoformat()
