"""Which partition of an internal topic answers for a group or a transactional id.

Kafka's ``Utils.abs(id.hashCode()) % partitions``: the same here, so that logs and tools of either
are at home with the other.
"""

import struct

_INT_MIN = -(2**31)


def string_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(key: str, partitions: int) -> int:
    """The partition among ``partitions`` of them; the smallest number has no positive one."""
    value = string_hash(key)
    return 0 if value == _INT_MIN else abs(value) % partitions
