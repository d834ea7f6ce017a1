"""Frames of a stored log: pieces of it, each compressed, encrypted, or both.

The log of a segment is stored byte for byte, or as frames. A frame has one piece of the log, of
``PIECE_BYTES`` (the last one may be shorter). It can be decoded without the other frames, so a
ranged read of the log becomes a ranged read of the object. Digests in manifests are of the log's
own bytes.

A compressed piece is one frame of Zstandard (RFC 8878) with its size. The object of a log that is
not encrypted is therefore a file that ``zstd -d`` unpacks. Encryption comes after compression.

The auxiliary object has the table of frames: codec u8 (0 none, 1 zstd), cipher u8 (0 none, 1
AES-256-GCM), reserved u16, and for each frame its size u32. The digests of all frames follow, if
they are not encrypted. Encrypted ones have tags of their cipher instead. Readers that verify a
frame need not hash its piece, which may be seven times as large. A digest of the stored bytes also
finds changes that unpack to the same piece.
"""

import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import cramjam

from tidemark.records.batch import Buffer
from tidemark.tier.metadata.segment import DigestAlgorithm
from tidemark.tier.segments.integrity import DIGEST_BYTES, PIECE_BYTES, digest_of, split_pieces
from tidemark.tier.segments.sealing import DataKey

_HEAD = struct.Struct(">BBH")
_SIZE = struct.Struct(">I")
#: Codecs, and ciphers.
_PLAIN, _ZSTD = 0, 1
_CLEAR, _AES_GCM = 0, 1
#: Level of Zstandard: its default, the usual balance of speed and size.
_LEVEL = 3
#: A log is compressed if that saves at least this share of its first piece.
_SAVED_MIN = 1 / 8


@dataclass(frozen=True, slots=True)
class Frames:
    """Table of a stored log's frames.

    ``starts``: position of each frame in the object, and the size of the object at the end.
    ``digests``: those of the frames, of ``algorithm``; none if they are encrypted. ``key`` decrypts
    them; it is known once the auxiliary object was decrypted.
    """

    is_compressed: bool
    is_encrypted: bool
    starts: "array[int]"
    algorithm: DigestAlgorithm
    digests: tuple[bytes, ...]
    key: DataKey | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, data: bytes, algorithm: DigestAlgorithm) -> "Frames":
        """Parse the table. Raises ValueError and struct.error."""
        codec, cipher, _ = _HEAD.unpack_from(data)
        if codec not in (_PLAIN, _ZSTD) or cipher not in (_CLEAR, _AES_GCM):
            raise ValueError(f"frames of codec {codec} and cipher {cipher}")
        is_encrypted = cipher == _AES_GCM
        row_bytes = _SIZE.size + (0 if is_encrypted else DIGEST_BYTES)
        count, rest = divmod(len(data) - _HEAD.size, row_bytes)
        if rest:
            raise ValueError(f"{len(data)} bytes are no table of frames")
        sizes_end = _HEAD.size + count * _SIZE.size
        sizes = (size for (size,) in _SIZE.iter_unpack(data[_HEAD.size : sizes_end]))
        starts = array("Q", itertools.accumulate(sizes, initial=0))
        digests = split_pieces(data[sizes_end:])
        return cls(codec == _ZSTD, is_encrypted, starts, algorithm, digests)

    def encode(self) -> bytes:
        """Return the bytes that ``parse`` reads."""
        sizes = (end - start for start, end in itertools.pairwise(self.starts))
        codec = _ZSTD if self.is_compressed else _PLAIN
        cipher = _AES_GCM if self.is_encrypted else _CLEAR
        head = _HEAD.pack(codec, cipher, 0)
        return b"".join((head, *map(_SIZE.pack, sizes), *self.digests))

    @property
    def stored_bytes(self) -> int:
        """Size of the object."""
        return self.starts[-1]

    @property
    def count(self) -> int:
        """Number of frames in the table, one for each piece of the log."""
        return len(self.starts) - 1

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the table."""
        return 8 * len(self.starts) + 80 * len(self.digests) + 200

    def fits(self, log_bytes: int) -> bool:
        """Return whether these are the frames of a log of this size."""
        return self.count == -(-log_bytes // PIECE_BYTES)

    def stored_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the object with the bytes ``start`` to ``end`` of the log."""
        return self.starts[start // PIECE_BYTES], self.starts[-(-end // PIECE_BYTES)]

    def decode(self, stored: Buffer, start: int, end: int, log_bytes: int) -> bytes:
        """Return the bytes ``start`` to ``end`` of a log of ``log_bytes``.

        ``stored``: the bytes of the object in :meth:`stored_range`. Raises ValueError if they are
        not those that were stored.
        """
        # The range is rounded to whole pieces, because a frame is decoded as a whole.
        first, past = start // PIECE_BYTES, -(-end // PIECE_BYTES)
        offset = self.starts[first]
        if len(stored) != self.starts[past] - offset:
            raise ValueError(f"it has no bytes from {offset + len(stored)} to {self.starts[past]}")
        pieces: list[Buffer] = []
        for number in range(first, past):
            frame = bytes(stored[self.starts[number] - offset : self.starts[number + 1] - offset])
            size = min(PIECE_BYTES, log_bytes - number * PIECE_BYTES)
            try:
                pieces.append(self._decode_frame(number, frame, size))
            except ValueError as error:
                raise ValueError(f"frame {number} at byte {self.starts[number]}: {error}") from None
        # Only the first and the last piece are cut. Usually a chunk of a cache is one whole piece.
        if end % PIECE_BYTES:
            pieces[-1] = memoryview(pieces[-1])[: end - (past - 1) * PIECE_BYTES]
        if start % PIECE_BYTES:
            pieces[0] = memoryview(pieces[0])[start - first * PIECE_BYTES :]
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def _decode_frame(self, number: int, frame: bytes, size: int) -> bytes | bytearray:
        """Return the piece of ``size`` bytes that a frame has. Raises ValueError."""
        data = frame
        # The tag of an encrypted frame proves what the digest of another one does.
        if self.is_encrypted:
            if self.key is None:
                raise ValueError("it is encrypted, and the auxiliary object is not")
            data = self.key.open(number + 1, frame)
        elif digest_of(frame, self.algorithm) != self.digests[number]:
            raise ValueError("its digest differs")
        # The size of the piece is known, so a frame can neither unpack to more nor to less.
        if not self.is_compressed:
            if len(data) != size:
                raise ValueError(f"it has {len(data)} bytes of {size}")
            return data
        piece = bytearray(size)
        try:
            found = cramjam.zstd.decompress_into(data, piece)
        except cramjam.DecompressionError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if found != size:
            raise ValueError(f"it has {found} bytes of {size}")
        return piece


class FrameWriter:
    """Writer of the frames of one log."""

    def __init__(
        self, key: DataKey | None, algorithm: DigestAlgorithm, *, is_compressed: bool
    ) -> None:
        """Prepare to compress pieces, and to encrypt them with ``key`` unless it is None."""
        self._key = key
        self._algorithm = algorithm
        self._is_compressed = is_compressed
        self._starts = array("Q", [0])
        self._digests: list[bytes] = []

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
        return Frames(
            self._is_compressed,
            encrypts,
            self._starts,
            self._algorithm,
            tuple(self._digests),
            self._key,
        )

    def _frame(self, piece: bytes) -> bytes:
        number = len(self._starts) - 1
        data = _compressed(piece) if self._is_compressed else piece
        # Numbers of frames start at 1: the key encrypts the auxiliary object as number 0.
        frame = data if self._key is None else self._key.seal(number + 1, data)
        if self._key is None:
            self._digests.append(digest_of(frame, self._algorithm))
        self._starts.append(self._starts[-1] + len(frame))
        return frame


def is_compressible(piece: bytes) -> bool:
    """Return whether compression makes the first piece of a log notably smaller.

    Pieces of batches that their producer has compressed hardly become smaller.
    """
    return len(_compressed(piece)) <= len(piece) * (1 - _SAVED_MIN)


def _compressed(piece: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(piece, level=_LEVEL))
