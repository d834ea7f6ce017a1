"""Frames of a stored log: pieces of it, each compressed, encrypted, or both.

The log of a segment is stored byte for byte, or as frames. A frame has one piece of the log, of
``PIECE_BYTES`` (the last one may be shorter). It can be decoded without the other frames, so a
ranged read of the log becomes a ranged read of the object. Digests are of the log's own bytes.

A compressed piece is one frame of Zstandard (RFC 8878) with its size. The object of a log that is
not encrypted is therefore a file that ``zstd -d`` unpacks. Encryption comes after compression.

The auxiliary object has the table of frames: codec u8 (0 none, 1 zstd), cipher u8 (0 none, 1
AES-256-GCM), reserved u16, and for each frame its size u32 and CRC-32C u32. Most of Zstandard's
damage shows in the digest of the piece. The CRC also finds changes that unpack to the same bytes.
"""

import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import cramjam
import google_crc32c

from tidemark.tier.segments.integrity import PIECE_BYTES
from tidemark.tier.segments.sealing import DataKey

_HEAD = struct.Struct(">BBH")
_ROW_VALUES = 2
_NONE, _ZSTD, _AES_GCM = 0, 1, 1
#: Level of Zstandard: its default, the usual balance of speed and size.
_LEVEL = 3
#: A log is compressed if that saves at least this share of its first piece.
_SAVED_MIN = 1 / 8


@dataclass(frozen=True, slots=True)
class Frames:
    """Table of a stored log's frames.

    ``starts``: position of each frame in the object, and the size of the object at the end.
    ``crcs``: CRC-32C of each frame. ``key`` decrypts them, None if they are not encrypted; it is
    known once the auxiliary object was decrypted.
    """

    is_compressed: bool
    is_encrypted: bool
    starts: "array[int]"
    crcs: "array[int]"
    key: DataKey | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, data: bytes) -> "Frames":
        """Parse the table. Raises ValueError and struct.error."""
        codec, cipher, _ = _HEAD.unpack_from(data)
        if codec not in (_NONE, _ZSTD) or cipher not in (_NONE, _AES_GCM):
            raise ValueError(f"frames of codec {codec} and cipher {cipher}")
        count, rest = divmod(len(data) - _HEAD.size, 4 * _ROW_VALUES)
        if rest:
            raise ValueError(f"{len(data)} bytes are no table of frames")
        values = struct.unpack_from(f">{_ROW_VALUES * count}I", data, _HEAD.size)
        starts = array("Q", itertools.accumulate(values[::_ROW_VALUES], initial=0))
        crcs = array("I", values[1::_ROW_VALUES])
        return cls(codec == _ZSTD, cipher == _AES_GCM, starts, crcs)

    def encode(self) -> bytes:
        """Return the bytes that ``parse`` reads."""
        sizes = (end - start for start, end in itertools.pairwise(self.starts))
        values = itertools.chain.from_iterable(zip(sizes, self.crcs, strict=True))
        codec, cipher = int(self.is_compressed) * _ZSTD, int(self.is_encrypted) * _AES_GCM
        head = _HEAD.pack(codec, cipher, 0)
        return head + struct.pack(f">{_ROW_VALUES * len(self.crcs)}I", *values)

    @property
    def stored_bytes(self) -> int:
        """Size of the object."""
        return self.starts[-1]

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the table."""
        return 12 * len(self.starts) + 200

    def fits(self, log_bytes: int) -> bool:
        """Return whether these are the frames of a log of this size."""
        return len(self.crcs) == -(-log_bytes // PIECE_BYTES)

    def stored_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the object with the bytes ``start`` to ``end`` of the log."""
        return self.starts[start // PIECE_BYTES], self.starts[-(-end // PIECE_BYTES)]

    def decode(self, stored: bytes, start: int, end: int, log_bytes: int) -> bytes:
        """Return the bytes ``start`` to ``end`` of a log of ``log_bytes``.

        ``stored``: the bytes of the object in :meth:`stored_range`. Raises ValueError if they are
        not those that were stored.
        """
        # The range is rounded to whole pieces, because a frame is decoded as a whole.
        first, past = start // PIECE_BYTES, -(-end // PIECE_BYTES)
        begin, finish = first * PIECE_BYTES, min(past * PIECE_BYTES, log_bytes)
        offset = self.starts[first]
        if len(stored) != self.starts[past] - offset:
            raise ValueError(f"it has no bytes from {offset + len(stored)} to {self.starts[past]}")
        # Frames are decoded into one buffer, so that each byte is copied once more only.
        pieces = bytearray(finish - begin)
        for number in range(first, past):
            frame = stored[self.starts[number] - offset : self.starts[number + 1] - offset]
            at = (number - first) * PIECE_BYTES
            size = min(PIECE_BYTES, len(pieces) - at)
            try:
                self._decode_frame(number, frame, memoryview(pieces)[at : at + size])
            except ValueError as error:
                raise ValueError(f"frame {number} at byte {self.starts[number]}: {error}") from None
        return bytes(memoryview(pieces)[start - begin : end - begin])

    def _decode_frame(self, number: int, frame: bytes, piece: memoryview) -> None:
        """Write the piece of one frame into ``piece``, which has its size. Raises ValueError."""
        # The cheapest check first; it also finds changes that decode to the same bytes.
        if google_crc32c.value(frame) != self.crcs[number]:
            raise ValueError("its checksum differs")
        data = frame
        if self.is_encrypted:
            if self.key is None:
                raise ValueError("it is encrypted, and the auxiliary object is not")
            data = self.key.open(number + 1, frame)
        # The size of the piece is known, so a frame can neither unpack to more nor to less.
        if not self.is_compressed:
            if len(data) != len(piece):
                raise ValueError(f"it has {len(data)} bytes of {len(piece)}")
            piece[:] = data
            return
        try:
            size = cramjam.zstd.decompress_into(data, piece)
        except cramjam.DecompressionError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if size != len(piece):
            raise ValueError(f"it has {size} bytes of {len(piece)}")


class FrameWriter:
    """Writer of the frames of one log."""

    def __init__(self, key: DataKey | None, *, is_compressed: bool) -> None:
        """Prepare to compress pieces, and to encrypt them with ``key`` unless it is None."""
        self._key = key
        self._is_compressed = is_compressed
        self._starts = array("Q", [0])
        self._crcs = array("I")

    def encode(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the frames of a log that arrives in parts of any size."""
        pending = b""
        for part in parts:
            pending += part
            whole = len(pending) - len(pending) % PIECE_BYTES
            for begin in range(0, whole, PIECE_BYTES):
                yield self._frame(pending[begin : begin + PIECE_BYTES])
            pending = pending[whole:]
        if pending:
            yield self._frame(pending)

    def finish(self) -> Frames:
        """Return the table of the frames."""
        encrypts = self._key is not None
        return Frames(self._is_compressed, encrypts, self._starts, self._crcs, self._key)

    def _frame(self, piece: bytes) -> bytes:
        number = len(self._crcs)
        data = _compressed(piece) if self._is_compressed else piece
        # Numbers of frames start at 1: the key encrypts the auxiliary object as number 0.
        frame = data if self._key is None else self._key.seal(number + 1, data)
        self._crcs.append(google_crc32c.value(frame))
        self._starts.append(self._starts[-1] + len(frame))
        return frame


def is_compressible(piece: bytes) -> bool:
    """Return whether compression makes the first piece of a log notably smaller.

    Pieces of batches that their producer has compressed hardly become smaller.
    """
    return len(_compressed(piece)) <= len(piece) * (1 - _SAVED_MIN)


def _compressed(piece: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(piece, level=_LEVEL))
