"""Zigzag varints of records: 32 bits in at most 5 bytes, 64 bits in at most 10.

Bits of the last byte beyond the width are dropped, as in Kafka's ``ByteUtils``, so that all readers
decode the same value.
"""

from tidemark.records.batch import Buffer

_INT_BYTES, _INT_MASK = 5, 0xFFFF_FFFF
_LONG_BYTES, _LONG_MASK = 10, 0xFFFF_FFFF_FFFF_FFFF


class VarintError(ValueError):
    """The varint does not end, or ends beyond the buffer."""


def write_varint(out: bytearray, value: int) -> None:
    """Append ``value`` in zigzag form (one function for varint and varlong)."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value of 32 bits, position behind it)."""
    if position + 1 < len(buffer):  # most take one byte, or two
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        after = buffer[position + 1]
        if after < 0x80:
            return ((byte & 0x7F) >> 1 | after << 6) ^ -(byte & 1), position + 2
    raw, position = _read(buffer, position, _INT_BYTES)
    raw &= _INT_MASK
    return (raw >> 1) ^ -(raw & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return (value of 64 bits, position behind it)."""
    if position + 1 < len(buffer):
        byte = buffer[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        after = buffer[position + 1]
        if after < 0x80:
            return ((byte & 0x7F) >> 1 | after << 6) ^ -(byte & 1), position + 2
    raw, position = _read(buffer, position, _LONG_BYTES)
    raw &= _LONG_MASK
    return (raw >> 1) ^ -(raw & 1), position


def _read(buffer: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    raw = shift = 0
    for at in range(position, min(position + bytes_max, len(buffer))):
        byte = buffer[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, at + 1
        shift += 7
    raise VarintError(f"a varint at byte {position} does not end")
