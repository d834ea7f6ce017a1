"""Records of a topic that are no longer needed, because a table's commit contains them (KIP-107).

An export that deletes relies on the table alone. A job that still owns the table reads the table's
newest commit again, and deletes nothing above its offsets. Deletion is idempotent and cumulative,
so the next job deletes at its start what a killed job has not deleted.

A table records the offset from which it has *all* records. Records between the topic's log start
and that offset may be in no table. Deletion up to a higher offset would delete them as well, so it
is refused.

A job with a Kubernetes API deletes by a ``RecordDeletion``. The pod of an ``Export`` has no API
token, and an Apache Kafka without an operator has no such resource. These delete through the
topic's brokers, which answer once no live replica has the records.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.log_lineage import LogLineage, ReadPosition, divergence, loss_text
from tidemark_pipeline.errors import DependencyUnavailable
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


class BrokerDeletions:
    """Deleter for one cluster; each deletion opens its own connections, as they may be hours
    apart.
    """

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access

    def delete(self, topic: str, topic_id: str, below: Mapping[int, ReadPosition]) -> None:
        """Delete the records below these offsets and return once all live replicas have done so.

        ``topic_id``: ID of the exported topic, "" if its brokers have no IDs. ``below``: offset and
        leader epoch by partition. Raises DependencyUnavailable if a later attempt may succeed,
        otherwise ExportError.
        """
        try:
            with BlockingKafkaClient(self._access) as brokers:
                current = brokers.topics([topic]).get(topic)
                # A re-created topic has the same name and the same offsets, but other records.
                if current is None or str(current.topic_id or "") != topic_id:
                    raise ExportError(
                        f"the topic {topic} is no longer the one that was exported: nothing is "
                        "deleted"
                    )
                # After an unclean leader election, the log may have other records at the same
                # offsets.
                _check_epochs(brokers, topic, below)
                offsets = {part: at.offset for part, at in below.items()}
                reached = brokers.delete_records(topic, offsets)
        except Unreachable as error:
            raise DependencyUnavailable(
                f"records of {topic} are not deleted yet: {error}"
            ) from error
        except ClusterRefused as error:
            raise ExportError(f"records of {topic} are not deleted: {error}") from error
        # The low watermark is the lowest log start of the live replicas. If it is below the offset,
        # a lagging replica still has records.
        late = [part for part, at in below.items() if reached.get(part, -1) < at.offset]
        if late:
            raise DependencyUnavailable(
                f"{topic}-{late[0]}: a replica still has records that were deleted"
            )


def _check_epochs(
    brokers: BlockingKafkaClient, topic: str, below: Mapping[int, ReadPosition]
) -> None:
    """Check the log's epochs just before DeleteRecords, which names offsets alone."""
    known = {part: at.leader_epoch for part, at in below.items() if at.leader_epoch is not None}
    for part, end in brokers.epoch_ends(topic, known).items():
        log = LogLineage(
            partition=part, leader_epoch=end.leader_epoch, later_epoch_start=end.offset
        )
        lost_from = divergence(below[part], log)
        if lost_from is not None:
            what = loss_text(f"{topic}-{part}", below[part], lost_from)
            raise ExportError(f"{what}. Nothing is deleted. Restart the export")
