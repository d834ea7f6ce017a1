"""Definitions of the topics in which the coordinators of groups and transactions store their state:
Kafka's ``offsets.topic.*`` and ``transaction.state.log.*``.

They are compacted and never tiered. They are created with as many replicas as there are brokers, so
that a cluster of one broker serves groups. The others are added as brokers join (KIP-409).
"""

from collections.abc import Mapping

from kio.static.primitive import i32

from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemark.wire.topics import ChangeKind, Setting, SettingOperation, TopicChange
from tidemark_broker.config_entries import integer_of

_PARTITIONS_MAX = 10_000
_REPLICAS_MAX = 100


def creation_of(topic: str, entries: Mapping[str, str]) -> TopicChange:
    """Return the creation of one of ``COORDINATORS_TOPICS``, as the broker's configuration says."""
    # Kafka's keys differ between both topics, and only one has a minimum ISR.
    if topic == GROUP_OFFSETS_TOPIC:
        partitions = integer_of(entries, "offsets.topic.num.partitions")
        replicas = integer_of(entries, "offsets.topic.replication.factor")
        segment_bytes = integer_of(entries, "offsets.topic.segment.bytes")
        config = {}
    elif topic == TRANSACTION_STATE_TOPIC:
        partitions = integer_of(entries, "transaction.state.log.num.partitions")
        replicas = integer_of(entries, "transaction.state.log.replication.factor")
        segment_bytes = integer_of(entries, "transaction.state.log.segment.bytes")
        min_isr = integer_of(entries, "transaction.state.log.min.isr")
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": "false",
        }
    else:
        raise ValueError(f"{topic} is not a topic of a coordinator")
    config |= {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
    return TopicChange(
        kind=ChangeKind.CREATE,
        name=topic,
        topic_id=None,
        partitions=i32(min(partitions, _PARTITIONS_MAX)),
        replication_factor=i32(min(replicas, _REPLICAS_MAX)),
        settings=tuple(
            Setting(name=name, value=value, operation=SettingOperation.SET)
            for name, value in sorted(config.items())
        ),
        automatic=True,
    )
