"""Verification that objects of the tier are what was copied.

A batch's CRC-32C does not cover its base offset, and a whole segment of another partition has valid
batches too: unverified, it would be served under wrong offsets. The copier therefore hashes what it
uploads, and the manifest has a digest of each object. The digest of the auxiliary object covers all
of it, because it is read whole. That of the log is a tree of two levels: the digest of the digests
of its pieces of ``PIECE_BYTES``, which the auxiliary object contains. The log is hashed once, and a
ranged read is verified as strictly as a whole one, before a byte of it is used.

The manifest's entry and the auxiliary object name the algorithm of a segment's digests. New copies
have BLAKE3, which takes a quarter of the processor time of SHA-256, even with the processor's SHA
instructions. Both resist chosen collisions. Segments with SHA-256 stay readable and keep their
digests. A merge gives their records to a segment with new ones.

Digests prove that a copy equals the broker's file, not that the file was valid. The copier
therefore checks each batch that it uploads, and says so in the auxiliary object. Readers check the
CRCs of segments without that mark, which earlier versions copied.

Entries of the manifest's first format have no digests, so the CRCs of their batches are always
checked. In every segment, base offsets must continue from its start to its end. Offsets that a
leader assigns have no gaps, and compaction (of a topic that was compacted before it was tiered)
leaves none between batches, so a gap is damage.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Protocol

from blake3 import blake3

from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    compute_crc,
    iter_headers,
    parse_header,
    require_crc,
)
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata.segment import DigestAlgorithm, SegmentEntry


class _Hash(Protocol):
    """Running hash, as in ``hashlib``."""

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...


#: Algorithm of the digests of new copies.
COPY_ALGORITHM = DigestAlgorithm.BLAKE3
_HASHES: Mapping[DigestAlgorithm, Callable[..., _Hash]] = {
    DigestAlgorithm.SHA256: hashlib.sha256,
    DigestAlgorithm.BLAKE3: blake3,
}
DIGEST_BYTES = 32
#: Bytes of a log that one piece digest covers; part of the auxiliary object's format.
PIECE_BYTES = 256 * 1024


class ObjectDamaged(Exception):
    """An object of the tier differs from what was copied: nothing of it may be used."""


def damaged(entry: SegmentEntry, key: str, store: str, what: str) -> ObjectDamaged:
    """Return the error for an object of a segment, with the remedy."""
    return ObjectDamaged(
        f"object {key} in {store} is not what was copied there: {what}. Nothing of it is served; "
        "restore the object from a copy, or give up its records with DeleteRecords or a "
        f"RecordDeletion before offset {entry.end_offset_inclusive + 1}"
    )


def digest_of(data: Buffer, algorithm: DigestAlgorithm) -> bytes:
    """Return the digest of the data."""
    return _HASHES[algorithm](data).digest()


def log_digest(pieces: Sequence[bytes], algorithm: DigestAlgorithm) -> bytes:
    """Return the digest of a log from those of its pieces."""
    return digest_of(b"".join(pieces), algorithm)


class LogDigest:
    """Digest of a log that is passed in parts of any size."""

    def __init__(self, algorithm: DigestAlgorithm) -> None:
        self._hash = _HASHES[algorithm]
        self._piece = self._hash()
        self._in_piece = 0
        self._pieces: list[bytes] = []

    def update(self, part: bytes) -> None:
        """Add the next bytes of the log."""
        # Parts have any size; digests are of pieces with a fixed size.
        view = memoryview(part)
        while view:
            taken = view[: PIECE_BYTES - self._in_piece]
            self._piece.update(taken)
            self._in_piece += len(taken)
            view = view[len(taken) :]
            if self._in_piece == PIECE_BYTES:
                self._close_piece()

    def finish(self) -> tuple[bytes, ...]:
        """Return the digests of the pieces."""
        if self._in_piece:
            self._close_piece()
        return tuple(self._pieces)

    def _close_piece(self) -> None:
        self._pieces.append(self._piece.digest())
        self._piece, self._in_piece = self._hash(), 0


def wrong_piece(
    data: Buffer, position: int, pieces: Sequence[bytes], algorithm: DigestAlgorithm
) -> int | None:
    """Return the log position of the first piece in ``data`` that differs, None if all match.

    ``pieces``: the digests of the log's pieces of ``PIECE_BYTES`` each. ``position``: byte
    of the log at which ``data`` starts, the start of a piece. ``data`` ends at the end of a piece
    or of the log.
    """
    view = memoryview(data)
    first = position // PIECE_BYTES
    for begin in range(0, len(view), PIECE_BYTES):
        # Fewer digests than pieces mean damage too.
        number = first + begin // PIECE_BYTES
        right = (
            number < len(pieces)
            and digest_of(view[begin : begin + PIECE_BYTES], algorithm) == pieces[number]
        )
        if not right:
            return position + begin
    return None


class CheckedStream:
    """Sequential reader of a log that returns only verified bytes.

    If the entry has no digests, only its length is known, and bytes pass unverified.

    ``pieces``: digests from the auxiliary object. The log is read whole, or from byte ``begin`` to
    ``end``, which are boundaries of pieces (``end`` may be the log's). Raises ObjectDamaged if the
    digests are not those of this log.
    """

    def __init__(
        self,
        entry: SegmentEntry,
        pieces: Sequence[bytes],
        store: str,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Prepare to read bytes ``begin`` to ``end`` of the log (None: to its end).

        ``store``: name of the store for error messages. Raises ObjectDamaged if ``pieces`` are not
        the digests of this log.
        """
        self._entry, self._pieces, self._store = entry, pieces, store
        # The manifest has one digest of all piece digests, which proves the list itself.
        digests = entry.digests
        if digests is not None and log_digest(pieces, digests.algorithm) != digests.log:
            what = "the digests that it has of the log are not the manifest's"
            raise damaged(entry, entry.aux_key, store, what)
        #: Received bytes of a piece that is not complete yet.
        self._unverified = b""
        #: Position in the log up to which bytes were returned to the caller.
        self._released = begin
        self._end = entry.size_bytes if end is None else end

    def feed(self, part: bytes) -> bytes:
        """Add the next bytes; return those that are verified now, possibly none.

        Raises ObjectDamaged if a piece differs from its digest.
        """
        data = self._unverified + part
        ends = self._released + len(data) >= self._end
        size, digests = len(data), self._entry.digests
        # A piece can only be verified as a whole: keep the rest until more bytes arrive.
        if digests is not None and not ends:
            size -= size % PIECE_BYTES
        self._unverified, data = data[size:], data[:size]
        if digests is not None:
            wrong = wrong_piece(data, self._released, self._pieces, digests.algorithm)
            if wrong is not None:
                raise self._damaged(f"its digest differs at byte {wrong}")
        self._released += size
        return data

    def finish(self) -> None:
        """Check that the whole range was fed. Raises ObjectDamaged."""
        size = self._released + len(self._unverified)
        if size != self._end:
            raise self._damaged(f"it has {size} bytes, the manifest says {self._entry.size_bytes}")

    def _damaged(self, what: str) -> ObjectDamaged:
        return damaged(self._entry, self._entry.log_key, self._store, what)


class BatchLine:
    """Sequence of a segment's batches.

    Each begins where the one before it ended, and the last ends where the segment does.
    ``expected``: base offset of the next batch. ``copied_end``: last offset of the log object if it
    is not the entry's. Offsets may then be missing between batches, and at the end.
    """

    def __init__(
        self,
        entry: SegmentEntry,
        store: str,
        expected: int | None = None,
        *,
        copied_end: int | None = None,
    ) -> None:
        self._entry, self._store, self._copied_end = entry, store, copied_end
        #: Base offset of the next batch.
        self.expected = entry.start_offset if expected is None else expected
        self._epochs = frozenset(epoch for epoch, _ in entry.leader_epochs)

    def follow(self, base_offset: int, last_offset: int, position: int, size_bytes: int) -> None:
        """Check that the batch at ``position`` of the log is the next one. Raises ObjectDamaged."""
        entry = self._entry
        is_behind_gap = self._copied_end is not None and base_offset > self.expected
        if base_offset != self.expected and not is_behind_gap:
            raise self._damaged(
                f"the batch at byte {position} begins with offset {base_offset}, not with "
                f"{self.expected}"
            )
        self.expected = last_offset + 1
        # The last byte and the last offset of the segment must belong to the same batch.
        end = entry.end_offset_inclusive if self._copied_end is None else self._copied_end
        ends = position + size_bytes == entry.size_bytes
        is_wrong_end = self._copied_end is None and (last_offset == end) != ends
        if is_wrong_end or last_offset > end:
            raise self._damaged(
                f"the batch at byte {position} ends with offset {last_offset}, and the segment "
                f"with {end}"
            )

    def check_batches(self, data: SplitBytes, position: int, *, crcs: bool = True) -> int:
        """Check batches of the log from ``position`` on that are to be served; return their bytes.

        :meth:`follow` has accepted the first one. A batch that ``data`` cuts is left out. ``crcs``
        is False if the digests prove the CRCs, too (:func:`sound_batches`). Raises ObjectDamaged.
        """
        size = 0
        try:
            for begin, header in data.headers():
                if begin:
                    behind = header.base_offset + header.last_offset_delta
                    self.follow(header.base_offset, behind, position + begin, header.size_bytes)
                if crcs:
                    data.check_crc(begin, header)
                self.check_epoch(header)
                size = begin + header.size_bytes
        except CorruptBatch as error:
            raise self._damaged(str(error)) from error
        return size

    def check_batch(self, data: Buffer, position_in_data: int = 0) -> None:
        """Check CRC-32C and leader epoch of a batch that is to be served. Raises ObjectDamaged."""
        try:
            # The piece digest proves equality with the broker's file, the CRC its validity.
            header = parse_header(data, position_in_data)
            check_crc(data, position_in_data, header)
        except CorruptBatch as error:
            raise self._damaged(str(error)) from error
        self.check_epoch(header)

    def check_epoch(self, header: BatchHeader) -> None:
        """Check that the manifest names the leader epoch of a batch that is to be served.

        Not for a batch below the log start, whose epoch may have been truncated before the copy,
        nor for entries of the first format. Raises ObjectDamaged.
        """
        epoch = header.partition_leader_epoch
        is_known = self._entry.digests is not None or self._copied_end is not None
        if is_known and epoch not in self._epochs:
            raise self._damaged(
                f"the batch at offset {header.base_offset} is of leader epoch {epoch}, the "
                f"manifest names {', '.join(map(str, sorted(self._epochs)))}"
            )

    def finish(self) -> None:
        """Check that the segment's end was reached. Raises ObjectDamaged."""
        if self._copied_end is None and self.expected != self._entry.end_offset_inclusive + 1:
            raise self._damaged(
                f"its batches end before offset {self.expected}, and the segment with "
                f"{self._entry.end_offset_inclusive}"
            )

    def _damaged(self, what: str) -> ObjectDamaged:
        return damaged(self._entry, self._entry.log_key, self._store, what)


def split_pieces(data: bytes) -> tuple[bytes, ...]:
    """Split joined piece digests. Raises ValueError unless they are a whole number of digests."""
    if len(data) % DIGEST_BYTES:
        raise ValueError(f"{len(data)} bytes are no digests of {DIGEST_BYTES}")
    return tuple(_sliced(data))


def _sliced(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), DIGEST_BYTES):
        yield data[begin : begin + DIGEST_BYTES]


#: Held by the thread that checks the batches of a copy. The check is Python code, so more threads
#: would not be faster, and the event loop would wait for each of them in turn.
_CHECKING = Lock()


def sound_batches(parts: Iterable[bytes], entry: SegmentEntry) -> Iterator[bytes]:
    """Yield the parts of a segment's whole log, and check each batch in them as readers will.

    Raises CorruptBatch at the latest after the last part.
    """
    line, head = _LocalLine(entry), b""
    # No part is kept, because a damaged length may name a batch as large as the segment.
    for part in parts:
        at = 0
        with _CHECKING:
            while at < len(part):
                if len(head) < HEADER_BYTES:
                    taken = part[at : at + HEADER_BYTES - len(head)]
                    head, at = head + taken, at + len(taken)
                    # The next part continues the header.
                    if len(head) < HEADER_BYTES:
                        break
                    header = line.follow(head)
                    left = header.size_bytes - HEADER_BYTES
                    crc = compute_crc(head, CRC_COVERS_FROM, HEADER_BYTES)
                # The records, as far as they are in this part.
                end = min(at + left, len(part))
                crc, left, at = compute_crc(part, at, end, crc), left - (end - at), end
                if not left:
                    require_crc(header, crc)
                    head = b""
        yield part
    if head:
        raise CorruptBatch("it ends within a batch")


class _LocalLine:
    """Sequence of the batches of a local log, which is about to become the segment ``entry``."""

    def __init__(self, entry: SegmentEntry) -> None:
        self._expected, self._least_epoch = entry.start_offset, -1
        self._epochs = frozenset(epoch for epoch, _ in entry.leader_epochs)

    def follow(self, head: bytes) -> BatchHeader:
        """Return the header of the next batch, and check what no CRC covers: base offset and epoch.

        Raises CorruptBatch.
        """
        header = parse_header(head)
        base, epoch = header.base_offset, header.partition_leader_epoch
        if base != self._expected:
            raise CorruptBatch(f"a batch begins with offset {base}, not with {self._expected}")
        # The entry does not name the epochs that ended below the log start.
        is_early = self._least_epoch <= epoch < min(self._epochs, default=0)
        if epoch not in self._epochs and not is_early:
            raise CorruptBatch(f"the batch at offset {base} is of leader epoch {epoch}")
        self._expected, self._least_epoch = header.last_offset + 1, epoch
        return header


#: (position in the log, bytes from there on, the batches in them: where each begins there).
Batches = tuple[int, bytes, list[tuple[int, BatchHeader]]]


def verified_batches(
    entry: SegmentEntry,
    parts: Iterable[bytes],
    digests: Sequence[bytes],
    store: str,
    *,
    begin: int = 0,
    position: int = 0,
    end: int | None = None,
) -> Iterator[Batches]:
    """Yield whole record batches of a log that arrives in parts, verified by its digests.

    Each item is (position of the data in the log, data, batch headers with positions in it).

    - ``parts``: the log's bytes from ``begin`` to ``end``, which are boundaries of pieces
      (:class:`CheckedStream`), or all of it
    - ``digests``: of the log's pieces; none if the entry has none
    - ``position``: byte of the log at which the first requested batch starts

    A batch that ``end`` cuts is left out. Raises ObjectDamaged, and errors of the iterator.
    """
    stream = CheckedStream(entry, digests, store, begin=begin, end=end)
    pending, skip = b"", position - begin
    for part in parts:
        pending += stream.feed(part)
        # Verified ranges start at a piece, which may be before the first requested batch.
        if skip:
            pending, skip = pending[skip:], max(0, skip - len(pending))
        try:
            headers = list(iter_headers(pending))
        except CorruptBatch as error:
            raise damaged(entry, entry.log_key, store, str(error)) from error
        # The rest of the last batch is completed by the next part.
        complete_bytes = headers[-1][0] + headers[-1][1].size_bytes if headers else 0
        yield position, pending, headers
        position, pending = position + complete_bytes, pending[complete_bytes:]
    # Fails if the parts ended before the expected end.
    stream.finish()
