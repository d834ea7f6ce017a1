"""Is what the store holds what was copied there?

A batch's CRC-32C does not cover its base offset, and a whole segment of another partition has
sound batches too: taken for good, it would be served under offsets that are not its own. So the
copier hashes what it uploads, with SHA-256 (with the processor's SHA instructions quicker than
BLAKE2b), and the manifest keeps a digest of each object. That of the auxiliary object is of all of
it, as it is read whole. That of the log is a tree of two levels: the digest of the digests of its
pieces of ``PIECE_BYTES``, which the auxiliary object holds. So the log is hashed once, and a ranged
read is checked as strictly as a whole one, before a byte of it is used.

Entries of the manifest's first format have no digests. For them, and beside digests (which say
that a copy is what the broker had, not that it was sound), the batches themselves are checked:
CRC-32C, and base offsets that run on from the segment's start to its end. Offsets that a leader
assigns have no gaps, and compaction (of a topic that was compacted before it was tiered) leaves
none between batches, so a gap there is damage.
"""

import hashlib
from collections.abc import Iterator, Sequence

from tidemark.records.batch import BatchHeader, Buffer, CorruptBatch, check_crc, parse_header
from tidemark.tier.segment import SegmentEntry

DIGEST_BYTES = 32
#: How much of a log one of its piece digests covers; part of the format of the auxiliary object.
PIECE_BYTES = 256 * 1024


class ObjectDamaged(Exception):
    """An object of the tier is not what was copied: nothing of it may be used."""


def damaged(entry: SegmentEntry, key: str, store: str, what: str) -> ObjectDamaged:
    """The error for an object of a segment, with what can be done."""
    return ObjectDamaged(
        f"object {key} in {store} is not what was copied there: {what}. Nothing of it is served; "
        "restore the object from a copy, or give up its records with a RecordDeletion before "
        f"offset {entry.end_offset_inclusive + 1}"
    )


def digest_of(data: Buffer) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def log_digest(pieces: Sequence[bytes]) -> bytes:
    """The digest of a log, from those of its pieces."""
    return digest_of(b"".join(pieces))


class LogDigest:
    """Digests of a log while it passes by in parts of any size."""

    def __init__(self) -> None:
        self._piece = hashlib.sha256()
        self._in_piece = 0
        self._pieces: list[bytes] = []

    def update(self, part: bytes) -> None:
        """The next bytes of the log."""
        view = memoryview(part)
        while view:
            taken = view[: PIECE_BYTES - self._in_piece]
            self._piece.update(taken)
            self._in_piece += len(taken)
            view = view[len(taken) :]
            if self._in_piece == PIECE_BYTES:
                self._close_piece()

    def finish(self) -> tuple[bytes, ...]:
        """Digests of the pieces."""
        if self._in_piece:
            self._close_piece()
        return tuple(self._pieces)

    def _close_piece(self) -> None:
        self._pieces.append(self._piece.digest())
        self._piece, self._in_piece = hashlib.sha256(), 0


def wrong_piece(data: bytes, position: int, pieces: Sequence[bytes]) -> int | None:
    """Position of the first piece in ``data`` that differs, None where all are right. ``position``
    is where ``data`` begins in the log, at a piece's beginning; it ends with a piece, or the
    log."""
    view = memoryview(data)
    first = position // PIECE_BYTES
    for begin in range(0, len(view), PIECE_BYTES):
        number = first + begin // PIECE_BYTES
        right = (
            number < len(pieces)
            and digest_of(view[begin : begin + PIECE_BYTES]) == (pieces[number])
        )
        if not right:
            return position + begin
    return None


class CheckedStream:
    """A log that is read in order: gives back only what is right already. Where the entry has no
    digests, nothing is known but its length, and bytes pass as they come.

    ``pieces``: digests from the auxiliary object. It is read whole, or from byte ``begin`` to
    ``end``, which lie between two pieces (``end`` may be the log's). Raises ObjectDamaged where the
    digests are not those of this log."""

    def __init__(
        self,
        entry: SegmentEntry,
        pieces: Sequence[bytes],
        store: str,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        self._entry, self._pieces, self._store = entry, pieces, store
        if entry.digests is not None and log_digest(pieces) != entry.digests.log:
            what = "the digests that it has of the log are not the manifest's"
            raise damaged(entry, entry.aux_key, store, what)
        self._held = b""
        self._released = begin
        self._end = entry.size_bytes if end is None else end

    def feed(self, part: bytes) -> bytes:
        """Take the next bytes; those that are checked now. Raises ObjectDamaged."""
        data = self._held + part
        ends = self._released + len(data) >= self._end
        size, known = len(data), self._entry.digests is not None
        if known and not ends:
            size -= size % PIECE_BYTES
        self._held, data = data[size:], data[:size]
        if known:
            wrong = wrong_piece(data, self._released, self._pieces)
            if wrong is not None:
                raise self._damaged(f"its digest differs at byte {wrong}")
        self._released += size
        return data

    def finish(self) -> None:
        """All of it was fed. Raises ObjectDamaged."""
        size = self._released + len(self._held)
        if size != self._end:
            raise self._damaged(f"it has {size} bytes, the manifest says {self._entry.size_bytes}")

    def _damaged(self, what: str) -> ObjectDamaged:
        return damaged(self._entry, self._entry.log_key, self._store, what)


class BatchLine:
    """Batches of one segment, one behind the other: each begins where the one before it ended, and
    the last ends where the segment does. ``expected``: base offset of the first that is to come."""

    def __init__(self, entry: SegmentEntry, store: str, expected: int | None = None) -> None:
        self._entry, self._store = entry, store
        self._expected = entry.start_offset if expected is None else expected
        self._epochs = frozenset(epoch for epoch, _ in entry.leader_epochs)

    def follow(self, base_offset: int, last_offset: int, position: int, size_bytes: int) -> None:
        """The batch at ``position`` of the log comes next. Raises ObjectDamaged."""
        entry = self._entry
        if base_offset != self._expected:
            raise self._damaged(
                f"the batch at byte {position} begins with offset {base_offset}, not with "
                f"{self._expected}"
            )
        self._expected = last_offset + 1
        ends = position + size_bytes == entry.size_bytes
        if (last_offset == entry.end_offset_inclusive) != ends or (
            last_offset > entry.end_offset_inclusive
        ):
            raise self._damaged(
                f"the batch at byte {position} ends with offset {last_offset}, and the segment "
                f"with {entry.end_offset_inclusive}"
            )

    def check_batch(self, data: Buffer, position_in_data: int = 0) -> None:
        """A batch that is to be served: its CRC-32C and its leader epoch. Raises ObjectDamaged."""
        try:
            header = parse_header(data, position_in_data)
            check_crc(data, position_in_data, header)
        except CorruptBatch as error:
            raise self._damaged(str(error)) from error
        self.check_epoch(header)

    def check_epoch(self, header: BatchHeader) -> None:
        """The leader epoch of a batch that is to be served is one that the manifest names. Not
        asked of a batch below the log start, whose epoch may have been forgotten before the copy,
        and not of entries of the first format. Raises ObjectDamaged."""
        epoch = header.partition_leader_epoch
        if self._entry.digests is not None and epoch not in self._epochs:
            raise self._damaged(
                f"the batch at offset {header.base_offset} is of leader epoch {epoch}, the "
                f"manifest names {', '.join(map(str, sorted(self._epochs)))}"
            )

    def finish(self) -> None:
        """Nothing more comes. Raises ObjectDamaged where the segment's end is not reached."""
        if self._expected != self._entry.end_offset_inclusive + 1:
            raise self._damaged(
                f"its batches end before offset {self._expected}, and the segment with "
                f"{self._entry.end_offset_inclusive}"
            )

    def _damaged(self, what: str) -> ObjectDamaged:
        return damaged(self._entry, self._entry.log_key, self._store, what)


def split_pieces(data: bytes) -> tuple[bytes, ...]:
    """Piece digests that were joined. Raises ValueError where they are no whole number of them."""
    if len(data) % DIGEST_BYTES:
        raise ValueError(f"{len(data)} bytes are no digests of {DIGEST_BYTES}")
    return tuple(_sliced(data))


def _sliced(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), DIGEST_BYTES):
        yield data[begin : begin + DIGEST_BYTES]
