"""Partition of an internal topic for a group or a transactional id.

Kafka's ``Utils.abs(id.hashCode()) % partitions``. It must be identical, so that logs and tools of
both are interchangeable.
"""

import struct

_INT_MIN = -(2**31)


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, in 32 bits."""
    # Java strings are UTF-16, so characters beyond the BMP count twice.
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key.

    As in Kafka, the smallest integer maps to 0, since its absolute value overflows.
    """
    value = string_hash(key)
    return 0 if value == _INT_MIN else abs(value) % partitions
