"""What a topic need not keep any more, since a table's own commit has it (KIP-107's motive).

An export that deletes does so from the table's word alone: what its newest commit says is read
again, by a job that still owns the table, and nothing above that is named. Deletion is idempotent
and cumulative, so that whatever a job that ended had not deleted the next one does, at its start.

A table says of itself only from where on it has *all*. What lies between the topic's log start and
there may be in no table, and deleting up to an offset would take it along: that is refused.

Pure, but for the protocol of whoever deletes.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.export.export_progress import Exported, ExportError


class Deleter(Protocol):
    """Deletes records of a topic, wherever it is asked for that."""

    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        """Delete all records below an offset of each partition; return once they are deleted.
        Records of a later leader epoch are other records and are kept. Raises
        :class:`~tidemark_pipeline.errors.ExportError`
        (:class:`~tidemark_pipeline.errors.DependencyUnavailable` where it may be tried again) where
        they are not, or the topic has another id."""


def points(exported: Exported, log_starts: Mapping[int, int]) -> dict[int, ReadPosition]:
    """Up to where records go, by partition; those of which nothing is to go are left out.
    ``log_starts``: of the topic now; a partition whose start is not known is left alone.

    Raises :class:`ExportError` where records would go that may not be in the table."""
    found = {}
    for partition, offset in sorted(exported.offsets.items()):
        log_start = log_starts.get(partition)
        if log_start is None or offset <= log_start:
            continue
        since = exported.since(partition)
        if since > log_start:
            raise ExportError(
                f"nothing says that the table has the records of {exported.topic}-{partition} from "
                f"its log start {log_start} up to offset {since}: it was begun at a starting "
                "offset, with failOnDataLoss=false, or by an older version. Nothing is deleted. "
                "Export into a new table from the log start on, or delete these records by a "
                "RecordDeletion of your own, if they need not be in the table"
            )
        found[partition] = exported.position(partition)
    return found
