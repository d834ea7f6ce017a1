"""Delete records through their brokers (DeleteRecords), for jobs without a Kubernetes API.

The pod of an ``Export`` has no API token, and an Apache Kafka without an operator has no
``RecordDeletion``. Brokers answer once no live replica has the records, like the resource's
condition. Only the visible object is missing.
"""

from collections.abc import Mapping

from tidemark.kafka_client.access import KafkaAccess
from tidemark.log_lineage import LogLineage, ReadPosition, divergence, loss_text
from tidemark_pipeline.brokers import BrokerClient, BrokerRefused, BrokersUnavailable
from tidemark_pipeline.errors import DependencyUnavailable, ExportError


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
            with BrokerClient(self._access) as brokers:
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
        except BrokersUnavailable as error:
            raise DependencyUnavailable(
                f"records of {topic} are not deleted yet: {error}"
            ) from error
        except BrokerRefused as error:
            raise ExportError(f"records of {topic} are not deleted: {error}") from error
        # The low watermark is the lowest log start of the live replicas. If it is below the offset,
        # a lagging replica still has records.
        late = [part for part, at in below.items() if reached.get(part, -1) < at.offset]
        if late:
            raise DependencyUnavailable(
                f"{topic}-{late[0]}: a replica still has records that were deleted"
            )


def _check_epochs(brokers: BrokerClient, topic: str, below: Mapping[int, ReadPosition]) -> None:
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
