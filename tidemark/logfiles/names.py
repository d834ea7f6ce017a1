"""Names of a partition's files and directories, as in Kafka.

A segment's files share the 20-digit offset of its first record. A partition's directory is
``<topic>-<partition>``, ``<topic>-<partition>.<32 hex digits>-delete`` while it is removed, and
``<topic>-<partition>.<32 hex digits>-stray`` once another directory replaces it.
"""

import re
import uuid

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
#: What compaction writes, and what is whole and on its way to its place.
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"

#: Topics that Kafka's own programs keep their state in (Kafka's ``Topic.INTERNAL_TOPICS``).
INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
#: Internal topics with the state of the group and transaction coordinators.
COORDINATORS_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})

_FILE_NAME_BYTES_MAX = 255
_SEGMENT_FILE = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.snapshot|\.txnindex)")
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_STRAY_DIRECTORY = re.compile(r".+-(0|[1-9][0-9]{0,9})\.[0-9a-f]{32}-stray")
_DELETED_DIRECTORY = re.compile(r".+\.[0-9a-f]{32}-delete")


def segment_file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file, such as ``00000000000000000042.log``."""
    return f"{offset:020d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) of a segment's file, or None for another name."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_directory_name(topic: str, partition: int) -> str:
    """Return the name of a partition's folder, ``<topic>-<partition>``, as Kafka names it."""
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a partition's directory, or None for another name."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def deleted_directory_name(topic: str, partition: int, unique: uuid.UUID) -> str:
    """Return the name to which a directory is renamed before its removal.

    Long topic names are cut, so that the result is a valid file name.
    """
    return _former_name(topic, f"-{partition}.{unique.hex}-delete")


def stray_directory_name(topic: str, partition: int, unique: uuid.UUID) -> str:
    """Return the name to which the directory of a failed replica is renamed.

    Long topic names are cut, so that the result is a valid file name.
    """
    return _former_name(topic, f"-{partition}.{unique.hex}-stray")


def _former_name(topic: str, tail: str) -> str:
    return topic[: _FILE_NAME_BYTES_MAX - len(tail)] + tail


def partition_of_stray(name: str) -> int | None:
    """Return the partition of a stray directory, or None for another name."""
    match = _STRAY_DIRECTORY.fullmatch(name)
    return None if match is None else int(match[1])


def is_deleted_directory(name: str) -> bool:
    """Whether a removal of this directory was begun."""
    return _DELETED_DIRECTORY.fullmatch(name) is not None
