"""Zigzag varints as records use them: 32-bit ones take at most 5 bytes, 64-bit ones at most 10."""

from tidemark.records.batch import Buffer


class VarintError(ValueError):
    """A varint that does not end, or ends beyond the buffer."""


def write_varint(out: bytearray, value: int) -> None:
    """Append ``value`` in zigzag form (one function for varint and varlong)."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """(value, position behind it)."""
    raw = shift = 0
    while True:
        if position >= len(buffer) or shift > 63:
            raise VarintError(f"a varint does not end before byte {position}")
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
