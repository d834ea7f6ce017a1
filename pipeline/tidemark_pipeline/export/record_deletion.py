"""Records of a topic that are no longer needed, because a table's commit contains them (KIP-107).

An export that deletes relies on the table alone. A job that still owns the table reads the table's
newest commit again, and deletes nothing above its offsets. Deletion is idempotent and cumulative,
so the next job deletes at its start what a killed job has not deleted.

A table records the offset from which it has *all* records. Records between the topic's log start
and that offset may be in no table. Deletion up to a higher offset would delete them as well, so it
is refused.

Pure, except for the protocol that deletes the records.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.export.export_progress import Exported, ExportError


class Deleter(Protocol):
    """Client that deletes records of a topic."""

    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        """Delete all records below an offset of each partition; return once they are deleted.

        Records of a later leader epoch are other records and are kept. Raises
        :class:`~tidemark_pipeline.errors.ExportError` if they are not deleted, or the topic has
        another ID. It is a :class:`~tidemark_pipeline.errors.DependencyUnavailable` if the deletion
        may be retried.
        """


def points(exported: Exported, log_starts: Mapping[int, int]) -> dict[int, ReadPosition]:
    """Return by partition the position up to which the topic's records may be deleted.

    It is the end of the table's committed rows: an offset with its leader epoch. ``log_starts``:
    current log start of each partition. A partition without one, or with nothing to delete, is left
    out. Raises :class:`ExportError` if records would be deleted that may not be in the table.
    """
    positions = {}
    for partition, offset in sorted(exported.offsets.items()):
        log_start = log_starts.get(partition)
        # Nothing to delete, or nothing known of the partition.
        if log_start is None or offset <= log_start:
            continue
        since = exported.since(partition)
        # ``since`` is the offset from which the table has every record. DeleteRecords deletes from
        # the log start, so it would include records that may be in no table.
        if since > log_start:
            raise ExportError(
                f"nothing says that the table has the records of {exported.topic}-{partition} from "
                f"its log start {log_start} up to offset {since}: it was begun at a starting "
                "offset, with failOnDataLoss=false, or by an older version. Nothing is deleted. "
                "Export into a new table from the log start on, or delete these records by a "
                "RecordDeletion of your own, if they need not be in the table"
            )
        # The deleter compares the leader epoch: after an unclean election the log may have other
        # records below this offset.
        positions[partition] = exported.position(partition)
    return positions
