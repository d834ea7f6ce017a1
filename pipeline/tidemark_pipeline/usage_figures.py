"""Figures of what topics take in the tier, and the policies that they are asked about: values that
grow while they are counted, none of them without a limit."""

import uuid
from dataclasses import dataclass, field

from tidemark.tier.objects import ObjectInfo
from tidemark.tier.retention import RetentionLimits
from tidemark.tier.topics import TopicObject

#: What rows may be told apart by, beside the topic.
DIMENSIONS = ("partition", "bucket", "day")
#: Of all topics together; what is left then goes into one row of its topic.
ROWS_MAX = 100_000
#: Buckets that are told apart.
BUCKETS_MAX = 100
#: Troubles that are told one by one.
TROUBLES_MAX = 100
#: The id of what belongs to no topic.
NOBODY = uuid.UUID(int=0)
#: The value of each dimension in the row of what has none of its own.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Policy:
    """What might be changed. ``name``: of a closed set, for metrics. ``retention_ms``,
    ``retention_bytes``: None where they stay as the topic has them; ``deletes_all``: a disablement
    with Delete; none of these: one with Retain."""

    name: str
    retention_ms: int | None = None
    retention_bytes: int | None = None
    deletes_all: bool = False

    def limits_for(self, topic: TopicObject) -> RetentionLimits | None:
        """None where it is no retention. What the topic object does not say counts as no limit."""
        if self.retention_ms is None and self.retention_bytes is None:
            return None
        time, size = self.retention_ms, self.retention_bytes
        return RetentionLimits(
            retention_ms=_whole(topic.config.get("retention.ms")) if time is None else time,
            retention_bytes=_whole(topic.config.get("retention.bytes")) if size is None else size,
            deletes="delete" in topic.config.get("cleanup.policy", "delete"),
        )


DISABLE_DELETE = Policy("disable-delete", deletes_all=True)
DISABLE_RETAIN = Policy("disable-retain")


@dataclass(slots=True)
class UsageFigures:
    """``log_bytes``: of the segments alone; ``stored_bytes``: what custom metadata says, indexes
    included. ``pending_*``: marked, their objects stay for ``remote.delete.delay.ms`` or until they
    could be deleted. ``copying``: copies under way, or that were never ended. ``unmeasured``: of
    the segments those whose custom metadata does not tell, counted as large as their logs."""

    segments: int = 0
    log_bytes: int = 0
    stored_bytes: int = 0
    pending_segments: int = 0
    pending_bytes: int = 0
    copying: int = 0
    unmeasured: int = 0

    def add(self, other: "UsageFigures") -> None:
        """These, too."""
        for name in UsageFigures.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class ListedObjects:
    """Objects under ``data/``. ``unnamed``: nothing names them; ``unknown``: in folders without a
    manifest. Both are among ``objects``."""

    objects: int = 0
    size_bytes: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    unknown: int = 0
    unknown_bytes: int = 0

    def add(self, info: ObjectInfo) -> None:
        """One more object."""
        self.objects += 1
        self.size_bytes += info.size_bytes

    def add_unnamed(self, info: ObjectInfo) -> None:
        """It is one that nothing names."""
        self.unnamed += 1
        self.unnamed_bytes += info.size_bytes

    def add_unknown(self, info: ObjectInfo) -> None:
        """It is one in a folder without a manifest."""
        self.unknown += 1
        self.unknown_bytes += info.size_bytes


#: Values of the dimensions that were asked for, in their order.
Row = tuple[str, ...]


@dataclass(slots=True)
class TopicUsage:
    """``rows`` by the dimensions that were asked for, ``buckets`` always; ``listed`` by bucket;
    ``freed``: stored bytes by the policy's name."""

    name: str
    topic_id: uuid.UUID
    rows: dict[Row, UsageFigures] = field(default_factory=dict)
    buckets: dict[str, UsageFigures] = field(default_factory=dict)
    listed: dict[str, ListedObjects] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Usage:
    """``elsewhere``: what lies under ``data/`` and is of none of the topics, where all was listed.
    ``troubles``: manifests that could not be read, ``passed_over`` times; what they name is counted
    nowhere."""

    topics: list[TopicUsage]
    elsewhere: TopicUsage | None
    by: tuple[str, ...]
    policies: tuple[Policy, ...]
    row_count: int = 0
    rows_left_out: bool = False
    troubles: list[str] = field(default_factory=list)
    passed_over: int = 0
    _buckets: set[str] = field(default_factory=set)

    def bucket(self, name: str) -> str:
        """The name, of as many as are told apart: manifests may name any."""
        if name not in self._buckets:
            if len(self._buckets) >= BUCKETS_MAX:
                return OTHER
            self._buckets.add(name)
        return name

    def row(self, topic: TopicUsage, row: Row) -> UsageFigures:
        """The figures of a row of a topic: a new one while there is room."""
        if row not in topic.rows and self.row_count >= ROWS_MAX:
            self.rows_left_out = True
            row = (OTHER,) * len(self.by)
        self.row_count += row not in topic.rows
        return topic.rows.setdefault(row, UsageFigures())

    def trouble(self, text: str) -> None:
        """A partition was passed over."""
        self.passed_over += 1
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(text)


def _whole(text: str | None) -> int:
    try:
        return -1 if text is None else int(text)
    except ValueError:
        return -1
