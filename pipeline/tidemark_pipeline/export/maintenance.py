"""Maintenance of a table of any format.

Small files are compacted, old table versions expire, and files that no version names are deleted.
All of this may run while a job exports into the table. A compaction is an ordinary commit, and the
job commits its batch after it. Deleted files are older than anything that a job is writing. The
table's progress is never lost.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.formats import Format

#: Receives a line for each step.
Say = Callable[[str], None]


def text_of(age: timedelta) -> str:
    """Return an age in hours, such as "168 h"."""
    return f"{age.total_seconds() / 3600:g} h"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Steps of one maintenance run.

    ``compact``: rewrite small files and files with many deleted rows. ``keep``: age up to which
    table versions are kept, together with the newest ``keep_last`` of Iceberg; None keeps all.
    ``orphans``: age from which files that no version names are deleted; None keeps them.
    """

    compact: bool = True
    keep: timedelta | None = timedelta(days=7)
    keep_last: int = 1
    # Longer than a job needs between writing a file and committing it.
    orphans: timedelta | None = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """Result of one maintenance run.

    ``compacted``: files that were rewritten to ``into`` files. ``failed``: files left unchanged
    because of concurrent commits. ``expired``: table versions. ``removed``: files deleted with
    them. ``orphans``: deleted files that no version named.
    """

    compacted: int = 0
    into: int = 0
    failed: int = 0
    expired: int = 0
    removed: int = 0
    orphans: int = 0

    def __add__(self, other: "Maintained") -> "Maintained":
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return Maintained(**sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStep:
    """Part of a maintenance run. ``is_exclusive``: it commits to the table, so that a batch that
    is written meanwhile may have to be written again."""

    name: str
    upkeep: TableMaintenance
    is_exclusive: bool

    @property
    def age(self) -> timedelta:
        """Return the age from which the step deletes something, zero for a compaction."""
        return max(self.upkeep.keep or timedelta(), self.upkeep.orphans or timedelta())


def steps(kind: Format, upkeep: TableMaintenance) -> tuple[MaintenanceStep, ...]:
    """Return the steps of a maintenance run in their order."""
    nothing = replace(upkeep, compact=False, keep=None, orphans=None)
    compaction = MaintenanceStep(
        name="compaction", upkeep=replace(nothing, compact=upkeep.compact), is_exclusive=True
    )
    # Iceberg's expiry repeats the export's progress in a commit.
    expiry = MaintenanceStep(
        name="expiration", upkeep=replace(nothing, keep=upkeep.keep), is_exclusive=True
    )
    orphans = MaintenanceStep(
        name="removal of orphans",
        upkeep=replace(nothing, orphans=upkeep.orphans),
        is_exclusive=False,
    )
    if kind is Format.DELTA:
        # VACUUM deletes files of old versions and orphans at once, and commits no change of rows.
        # If its age is short, a batch that is being written could lose its files.
        both = replace(upkeep, compact=False)
        expiry = MaintenanceStep(name="expiration", upkeep=both, is_exclusive=False)
        expiry = replace(expiry, is_exclusive=expiry.age < timedelta(days=1))
    return tuple(step for step in (compaction, expiry, orphans) if _has_work(kind, step.upkeep))


def _has_work(kind: Format, upkeep: TableMaintenance) -> bool:
    orphans = upkeep.orphans is not None and kind is not Format.DELTA
    return upkeep.compact or upkeep.keep is not None or orphans


class Upkeep(Protocol):
    """Maintenance of an export's tables while the export runs.

    ``writing``: the export holds it while it writes a batch.
    """

    writing: threading.Lock

    def during(
        self, is_ready: Callable[[], bool], stop: threading.Event, *, once: bool
    ) -> AbstractContextManager[None]:
        """Maintain the tables in this context; ``once``: at its end."""


# ------------------------------------------------------------ Deletion of rows of deleted records

# Selection of the table rows whose records no longer exist in the topic.
#
# Records below a partition's log start were removed by a ``RecordDeletion``, by DeleteRecords or by
# retention. A table keeps their rows until this deletion is requested. Then a separate commit
# removes the rows. Table versions that still contain them are removed on request.
#
# The deletion is refused if the rows may belong to other records. This is so if the topic was
# recreated, or if the export itself deleted committed records from the topic. In the second case
# the log start says what the table contains, not what it has to lose. A partition whose log start
# is unknown loses no rows.
#
# Pure, except for the protocol of the table.


@dataclass(frozen=True, slots=True, kw_only=True)
class Propagated:
    """Result of a deletion from a table.

    ``rows``: deleted rows. ``expired``: deleted table versions. ``removed``: deleted files.
    ``retained_by``: references and files that still keep older versions. ``behind``:
    partitions for which a running batch may still add such rows.
    """

    rows: int = 0
    expired: int = 0
    removed: int = 0
    retained_by: tuple[str, ...] = ()
    behind: tuple[int, ...] = ()


def below(
    exported: Exported, topic_ids: Collection[str], log_starts: Mapping[int, int]
) -> dict[int, int]:
    """Return by partition the offset below which table rows are deleted: the topic's log start.

    ``topic_ids``: IDs of the current topic, exactly one if the topic has an ID. Raises
    :class:`ExportError` if the topic is not known to be the exported one, or if exports delete from
    it.
    """
    # If exports delete committed records from the topic, its log start is the end of the table.
    # Deletion below it would remove all exported rows.
    if exported.deletes:
        raise ExportError(
            f"exports into the table have deleted from {exported.topic} what they had committed "
            "(--delete-after-commit): the topic's log start is no reason to drop it from the table"
        )
    # A recreated topic has the same name and other records at the same offsets.
    if set(topic_ids) != {exported.topic_id} or not exported.topic_id:
        raise ExportError(
            f"the topic {exported.topic} is not the one that the table was exported from, or it "
            "has no id: nothing is dropped"
        )
    return {partition: start for partition, start in sorted(log_starts.items()) if start > 0}


def behind(exported: Exported, log_starts: Mapping[int, int]) -> tuple[int, ...]:
    """Return the partitions whose rows below ``log_starts`` are not all in the table yet.

    A batch that was read before the deletion may be committed after it.
    """
    return tuple(
        partition
        for partition, start in log_starts.items()
        if exported.offsets.get(partition, 0) < start
    )


def condition(prefix: str, log_starts: Mapping[int, int]) -> str:
    """Return the SQL condition that selects the rows below the offsets of ``log_starts``.

    ``prefix``: prefix of the columns ``partition`` and ``offset``.
    """
    partition, offset = f"{prefix}`partition`", f"{prefix}`offset`"
    return " OR ".join(
        f"({partition} = {number} AND {offset} < {start})"
        for number, start in sorted(log_starts.items())
    )
