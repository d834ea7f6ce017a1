"""Lookup of the internal partition, and of the broker, that coordinates a group or transaction."""

import functools
import struct
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.replication.metadata import MetadataCache


class CoordinatorFinder:
    """Lookup of the coordinator of a key.

    ``request_topic`` requests the creation of a missing topic. It may be called any number of
    times.
    """

    def __init__(self, cluster: MetadataCache, request_topic: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._request_topic = request_topic

    def partition_of(self, topic: str, key: str) -> int:
        """Return the partition of the internal ``topic`` that coordinates ``key``, by Kafka's hash.

        ``key`` is a group id or a transactional id. Raises :class:`CoordinatorError`
        (COORDINATOR_NOT_AVAILABLE) if the topic does not exist, and requests its creation.
        """
        view = self._cluster.topics.get(topic)
        # The topic may be known here while its object is being deleted, so both are checked.
        is_there = view is not None and bool(view.partitions)
        if not (is_there and self._cluster.has_topic(topic)):
            self._request_topic(topic)
        if view is None or not is_there:
            raise CoordinatorError(
                ErrorCode.coordinator_not_available, f"the topic {topic} does not exist yet"
            )
        return partition_of(key, len(view.partitions))

    def leader_of(self, topic: str, key: str) -> int:
        """Return the broker that coordinates ``key``, -1 without one.

        Raises as :meth:`partition_of`.
        """
        number = self.partition_of(topic, key)
        row = self._cluster.topics[topic].partitions.get(number)
        return -1 if row is None else row.leader

    def is_in_doubt(self, topic: str, number: int) -> bool:
        """Return whether the controller does not know a partition's leader at present."""
        view = self._cluster.topics.get(topic)
        return view is not None and self._cluster.is_in_doubt(view.topic_id, number)


# ------------------------------------------------------------ Java's hash

# Partition of an internal topic for a group or a transactional id.
#
# Kafka's ``Utils.abs(id.hashCode()) % partitions``. It must be identical, so that logs and tools of
# both are interchangeable.

_INT_MIN = -(2**31)
#: Number and length of the ids whose hash is remembered: each request of a member needs it.
_REMEMBERED, _REMEMBERED_LENGTH_MAX = 1024, 256


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, in 32 bits."""
    # Java strings are UTF-16, so characters beyond the BMP count twice.
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


_remembered_hash = functools.lru_cache(maxsize=_REMEMBERED)(string_hash)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key.

    As in Kafka, the smallest integer maps to 0, since its absolute value overflows.
    """
    value = string_hash(key) if len(key) > _REMEMBERED_LENGTH_MAX else _remembered_hash(key)
    return 0 if value == _INT_MIN else abs(value) % partitions
