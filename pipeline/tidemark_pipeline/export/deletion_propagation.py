"""Which rows of a table are of records that its topic does not have any more.

What a ``RecordDeletion``, DeleteRecords or retention has taken from a topic lies below the log
start of its partition. A table keeps it until it is told; then a commit of its own takes the rows
out, and versions of the table that have them go where that is asked for.

It is refused where nothing says that the rows are of those records: the topic was made anew, or the
export itself has deleted from the topic what it had committed, so that its log start says what the
table has, and not what it is to lose. A log start that is not known takes nothing.

Pure, but for the protocol of the table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemark_pipeline.export.export_progress import Exported, ExportError
from tidemark_pipeline.export.maintenance import Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Propagated:
    """``rows``: that went; ``expired``: versions, and ``removed``: files, with what they had;
    ``held``: what keeps older versions still, and so their files; ``behind``: partitions whose rows
    a batch that is under way may still bring."""

    rows: int = 0
    expired: int = 0
    removed: int = 0
    held: tuple[str, ...] = ()
    behind: tuple[int, ...] = ()


class DroppedFrom(Protocol):
    """A table of one format, from which rows go."""

    def found(self) -> Exported | None:
        """How far the table is; None where no export has written it. Raises
        :class:`ExportError`."""

    def drop(self, where: str) -> None:
        """The rows of a condition, in one commit."""

    def drop_history(self, say: Say) -> Propagated:
        """Every version but the newest, and so the files that have what is gone."""


def below(
    exported: Exported, topic_ids: Collection[str], log_starts: Mapping[int, int]
) -> dict[int, int]:
    """By partition the offset below which rows go. ``topic_ids``: of the topic as it is now, one
    where it has an id. Raises :class:`ExportError` where that is not known of the table."""
    if exported.deletes:
        raise ExportError(
            f"exports into the table have deleted from {exported.topic} what they had committed "
            "(--delete-after-commit): the topic's log start is no reason to drop it from the table"
        )
    if set(topic_ids) != {exported.topic_id} or not exported.topic_id:
        raise ExportError(
            f"the topic {exported.topic} is not the one that the table was exported from, or it "
            "has no id: nothing is dropped"
        )
    return {partition: start for partition, start in sorted(log_starts.items()) if start > 0}


def behind(exported: Exported, gone: Mapping[int, int]) -> tuple[int, ...]:
    """Partitions of which the table has not all that ``gone`` names: a batch may have been read
    before it went, and come after."""
    return tuple(
        partition for partition, start in gone.items() if exported.offsets.get(partition, 0) < start
    )


def condition(prefix: str, gone: Mapping[int, int]) -> str:
    """Of these rows, in SQL; ``prefix``: of the columns ``partition`` and ``offset``."""
    partition, offset = f"{prefix}`partition`", f"{prefix}`offset`"
    return " OR ".join(
        f"({partition} = {number} AND {offset} < {start})" for number, start in sorted(gone.items())
    )
