"""Figures of the topics' bytes in the tier, and the policies to compare them with.

The values grow while they are counted, and all of them have limits.
"""

import uuid
from dataclasses import dataclass, field

from tidemark.tier.metadata.retention import RetentionLimits
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.stores.objects import ObjectInfo

#: Dimensions of rows, in addition to the topic.
DIMENSIONS = ("partition", "bucket", "day")
#: For all topics together. Rows beyond it are summed in one row of their topic.
ROWS_MAX = 100_000
#: Most buckets with rows of their own.
BUCKETS_MAX = 100
#: Most troubles that are reported one by one.
TROUBLES_MAX = 100
#: The id of objects that belong to no topic.
NO_TOPIC = uuid.UUID(int=0)
#: The value of each dimension in the row that sums the rows beyond the limit.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Policy:
    """A hypothetical retention or disablement, to compute which bytes it would free.

    ``name``: one of few fixed names, as it is a metric label. ``retention_ms``,
    ``retention_bytes``: None keeps the topic's value. ``deletes_all``: tiering is disabled with
    KIP-950's policy Delete. If no field is set, it is disabled with Retain.
    """

    name: str
    retention_ms: int | None = None
    retention_bytes: int | None = None
    deletes_all: bool = False

    def limits_for(self, topic: TopicObject) -> RetentionLimits | None:
        """Return the limits, None if the policy is no retention.

        A setting that the topic object does not contain counts as no limit.
        """
        if self.retention_ms is None and self.retention_bytes is None:
            return None
        time, size = self.retention_ms, self.retention_bytes
        return RetentionLimits(
            retention_ms=_limit(topic.config.get("retention.ms")) if time is None else time,
            retention_bytes=_limit(topic.config.get("retention.bytes")) if size is None else size,
            deletes="delete" in topic.config.get("cleanup.policy", "delete"),
        )


DISABLE_DELETE = Policy("disable-delete", deletes_all=True)
DISABLE_RETAIN = Policy("disable-retain")


@dataclass(slots=True)
class UsageFigures:
    """Sums over segments.

    - ``log_bytes``: bytes of the logs alone.
    - ``stored_bytes``: bytes according to custom metadata, indexes included.
    - ``pending_*``: marked for deletion; ``remote.delete.delay.ms`` delays that of their objects.
    - ``copying``: copies in progress, or copies that never finished.
    - ``unmeasured``: segments without known stored bytes, counted with the size of their logs.
    """

    segments: int = 0
    log_bytes: int = 0
    stored_bytes: int = 0
    pending_segments: int = 0
    pending_bytes: int = 0
    copying: int = 0
    unmeasured: int = 0

    def add(self, other: "UsageFigures") -> None:
        """Add the figures of another row."""
        for name in UsageFigures.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class ListedObjects:
    """Objects of one bucket that a listing of the store shows under ``data/``.

    ``unnamed``: objects that no manifest names. ``unknown``: objects in folders without a manifest.
    Both are included in ``objects``.
    """

    objects: int = 0
    size_bytes: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    unknown: int = 0
    unknown_bytes: int = 0

    def add(self, info: ObjectInfo) -> None:
        """Count an object that LIST returned."""
        self.objects += 1
        self.size_bytes += info.size_bytes

    def add_unnamed(self, info: ObjectInfo) -> None:
        """Count an object that no manifest names, after :meth:`add`."""
        self.unnamed += 1
        self.unnamed_bytes += info.size_bytes

    def add_unknown(self, info: ObjectInfo) -> None:
        """Count an object in a folder without a manifest, after :meth:`add`."""
        self.unknown += 1
        self.unknown_bytes += info.size_bytes


#: Values of the requested dimensions, in their order.
Row = tuple[str, ...]


@dataclass(slots=True)
class TopicUsage:
    """Usage of the object store by one topic.

    ``rows``: figures by the requested dimensions. ``buckets``: figures by bucket. ``listed``:
    objects found by listing, by bucket. ``freed``: stored bytes that each policy would free, by its
    name.
    """

    name: str
    topic_id: uuid.UUID
    rows: dict[Row, UsageFigures] = field(default_factory=dict)
    buckets: dict[str, UsageFigures] = field(default_factory=dict)
    listed: dict[str, ListedObjects] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Usage:
    """Usage of all requested topics.

    ``unowned``: objects under ``data/`` that belong to no topic, if all topics were listed.
    ``troubles``: manifests that could not be read, ``passed_over`` in total. Their segments are not
    counted.
    """

    topics: list[TopicUsage]
    unowned: TopicUsage | None
    by: tuple[str, ...]
    policies: tuple[Policy, ...]
    row_count: int = 0
    rows_left_out: bool = False
    troubles: list[str] = field(default_factory=list)
    passed_over: int = 0
    _buckets: set[str] = field(default_factory=set)

    def bucket(self, name: str) -> str:
        """Return the bucket's name, or OTHER beyond the limit, as manifests may name any bucket."""
        if name not in self._buckets:
            if len(self._buckets) >= BUCKETS_MAX:
                return OTHER
            self._buckets.add(name)
        return name

    def row(self, topic: TopicUsage, row: Row) -> UsageFigures:
        """Return the figures of a topic's row: a new one below the limit, else the row of the
        rest.
        """
        if row not in topic.rows and self.row_count >= ROWS_MAX:
            self.rows_left_out = True
            row = (OTHER,) * len(self.by)
        self.row_count += row not in topic.rows
        return topic.rows.setdefault(row, UsageFigures())

    def trouble(self, text: str) -> None:
        """Count a partition that was passed over."""
        self.passed_over += 1
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(text)


def _limit(text: str | None) -> int:
    try:
        # Topic settings come from users, so an invalid number counts as no limit.
        return -1 if text is None else int(text)
    except ValueError:
        return -1
