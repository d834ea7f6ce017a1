"""Record batches whose CRC is right and whose records need not be.

Written beside :mod:`tidemark.records.builder`, because that cannot lie. What is drawn comes from
one ``random.Random``, so that Hypothesis can shrink it and the fuzzer repeat it.
"""

import random
import struct

from tests.fuzz.frames import spoil
from tidemark.records.batch import CRC_COVERS_FROM, HEADER_BYTES, LENGTH_OVERHEAD, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import compress
from tidemark.records.varint import write_varint

T0 = 1_700_000_000_000
_LENGTHS = (-(2**31), -2, -1, 0, 1, 3, 63, 64, 2**20, 2**31 - 1, 2**62, -(2**63), 2**63 - 1)
_LONG_VARINTS = (b"\xff" * 4 + b"\x7f", b"\x80" * 5 + b"\x00", b"\xff" * 9 + b"\x7f", b"\x80" * 11)


def batch(payload: bytes, count: int, *, codec: int = 0, base_offset: int = 0) -> bytes:
    """A batch of any payload that claims ``count`` records; all else about it is right."""
    made = bytearray(build_batch([Record(None, b"", (), T0)], base_offset=base_offset))
    made[HEADER_BYTES:] = compress(codec, payload)
    # Positions in the v2 header: attributes 21, last offset delta 23, record count 57.
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">i", made, 23, max(0, count - 1))
    struct.pack_into(">i", made, 57, count)
    return sealed(made)


def sealed(made: bytearray) -> bytes:
    """The batch with the length that it has and the CRC that goes with it."""
    struct.pack_into(">i", made, 8, len(made) - LENGTH_OVERHEAD)
    struct.pack_into(">I", made, 17, compute_crc(made, CRC_COVERS_FROM, len(made)))
    return bytes(made)


def records(rng: random.Random, lies: float = 0.0) -> tuple[bytes, int]:
    """(payload, number of records); each number in it is a lie with the chance ``lies``."""
    number = rng.randint(0, 4)
    writer = _BatchWriter(rng, lies)
    payload = b"".join(writer.record(delta) for delta in range(number))
    if rng.random() < lies:
        payload += rng.randbytes(rng.randint(1, 8))
    # The count in the header may be wrong although the records are valid.
    claimed = rng.choice((-1, 0, number - 1, number + 1, 2**31 - 1))
    return payload, claimed if rng.random() < lies else number


def spoilt(rng: random.Random, payload: bytes, count: int, *, codec: int) -> bytes:
    """A batch of them with bytes changed before or after packing, or bits of its header."""
    # Damage before compression survives decompression. Damage after it is the codec's problem.
    made = bytearray(batch(spoil(rng, payload), count, codec=codec))
    if codec and rng.random() < 0.3:
        made[HEADER_BYTES:] = spoil(rng, bytes(made[HEADER_BYTES:]))
    if rng.random() < 0.1:
        made[rng.choice((21, 22, 27, 34, 57, 60))] ^= 1 << rng.randint(0, 7)
        made[22] &= 0xDF  # a control batch has no rows for Spark
    return sealed(made)


class _BatchWriter:
    def __init__(self, rng: random.Random, lies: float) -> None:
        self._rng = rng
        self._lies = lies

    def record(self, delta: int) -> bytes:
        body = bytearray(b"\x00")
        # A record: attributes, timestamp delta, offset delta, key, value, headers. Each length may
        # lie.
        body += self._number(self._rng.choice((0, 5, -7, 2**40)))
        body += self._number(delta)
        body += self._bytes() + self._bytes()
        headers = self._rng.choice((0, 0, 1, 2))
        body += self._number(headers)
        for _ in range(headers):
            body += self._bytes(null=False) + self._bytes()
        return bytes(self._number(len(body)) + body)

    def _bytes(self, *, null: bool = True) -> bytes:
        if null and self._rng.random() < 0.2:
            return bytes(self._number(-1))
        text = self._rng.choice((b"", b"a", b"key", "ß€".encode(), b"\xff\xc3(", b"\xed\xa0\x80"))
        return bytes(self._number(len(text)) + text)

    def _number(self, value: int) -> bytearray:
        out = bytearray()
        if self._rng.random() < self._lies:
            if self._rng.random() < 0.3:
                return bytearray(self._rng.choice(_LONG_VARINTS))
            value = self._rng.choice(_LENGTHS)
        write_varint(out, value)
        return out
