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
batches of segments without that mark, which earlier versions copied.

Entries of the manifest's first format have no digests, so the CRCs of their batches are always
checked. In every segment, base offsets must continue from its start to its end. Offsets that a
leader assigns have no gaps, and compaction (of a topic that was compacted before it was tiered)
leaves none between batches, so a gap is damage.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from blake3 import blake3

from tidemark.reasons import Reason
from tidemark.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    iter_headers,
    parse_header,
)
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata.segment import DigestAlgorithm, SegmentEntry
from tidemark.tier.stores.objects import SegmentUnreadable


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

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        #: Key of the object.
        self.key = key


def damaged(entry: SegmentEntry, key: str, store: str, what: str) -> ObjectDamaged:
    """Return the error for an object of a segment, with the remedy."""
    return ObjectDamaged(
        f"object {key} in {store} is not what was copied there: {what}. Nothing of it is served; "
        "restore the object from a copy, or give up its records with DeleteRecords or a "
        f"RecordDeletion before offset {entry.end_offset_inclusive + 1}",
        key,
    )


class ObjectVersionUnsupported(SegmentUnreadable):
    """An intact object has a later format version, as in a rolling upgrade."""

    def __init__(self, key: str, version: int, known: int) -> None:
        super().__init__(
            f"object {key} has format version {version}, and this version of Tidemark reads "
            f"versions up to {known}. Upgrade all brokers, jobs and commands to the version that "
            "wrote it. No record is lost",
            reason=Reason.OBJECT_VERSION_UNSUPPORTED,
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
        """Check that the batch at ``position`` of the log is the next one. Raises ObjectDamaged.

        Several batches without a gap between them may be checked as one.
        """
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
                f"the batch up to byte {position + size_bytes} ends with offset {last_offset}, and "
                f"the segment with {end}"
            )

    def check_batches(self, data: SplitBytes, position: int) -> int:
        """Check batches of the log from ``position`` on that are to be served; return their bytes.

        :meth:`follow` has accepted the first one. A batch that ``data`` cuts is left out. Not
        needed if the digests prove the batches, too (``local_segment``). Raises ObjectDamaged.
        """
        size = 0
        try:
            for begin, header in data.headers():
                if begin:
                    behind = header.base_offset + header.last_offset_delta
                    self.follow(header.base_offset, behind, position + begin, header.size_bytes)
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

    def _damaged(self, what: str) -> Exception:
        return damaged(self._entry, self._entry.log_key, self._store, what)


def split_pieces(data: bytes) -> tuple[bytes, ...]:
    """Split joined piece digests. Raises ValueError unless they are a whole number of digests."""
    if len(data) % DIGEST_BYTES:
        raise ValueError(f"{len(data)} bytes are no digests of {DIGEST_BYTES}")
    return tuple(_sliced(data))


def _sliced(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), DIGEST_BYTES):
        yield data[begin : begin + DIGEST_BYTES]


#: Batches that a reader has found in some bytes.
Found = TypeVar("Found")


def list_batches(data: bytes) -> tuple[list[tuple[int, BatchHeader]], int]:
    """Return position and header of each complete batch, and the bytes of all of them.

    Raises CorruptBatch.
    """
    headers = list(iter_headers(data))
    return headers, headers[-1][0] + headers[-1][1].size_bytes if headers else 0


def verified_batches(
    entry: SegmentEntry,
    parts: Iterable[bytes],
    digests: Sequence[bytes],
    store: str,
    find: Callable[[bytes], tuple[Found, int]],
    *,
    begin: int = 0,
    position: int = 0,
    end: int | None = None,
) -> Iterator[tuple[int, bytes, Found]]:
    """Yield whole record batches of a log that arrives in parts, verified by its digests.

    Each item is (position of the data in the log, data, batches in it).

    - ``parts``: the log's bytes from ``begin`` to ``end``, which are boundaries of pieces
      (:class:`CheckedStream`), or all of it
    - ``digests``: of the log's pieces; none if the entry has none
    - ``find``: returns the batches at the start of its bytes, and the bytes of all of them, as
      :func:`list_batches`
    - ``position``: byte of the log at which the first requested batch starts

    A batch that ``end`` cuts is left out. Raises ObjectDamaged, and errors of the iterator.
    """
    stream = CheckedStream(entry, digests, store, begin=begin, end=end)
    skip = position - begin
    #: Verified bytes from ``position``, and how many of them the next batch needs.
    held: list[bytes] = []
    needed_bytes = HEADER_BYTES
    for part in parts:
        verified = stream.feed(part)
        # Verified ranges start at a piece, which may be before the first requested batch.
        if skip:
            verified, skip = verified[skip:], max(0, skip - len(verified))
        held.append(verified)
        # Parts are joined once a batch is complete, because joining copies all of them.
        needed_bytes -= len(verified)
        if needed_bytes > 0:
            continue
        pending = b"".join(held)
        try:
            batches, complete_bytes = find(pending)
        except CorruptBatch as error:
            raise damaged(entry, entry.log_key, store, str(error)) from error
        yield position, pending, batches
        # The rest of the last batch is completed by the next part.
        position, rest = position + complete_bytes, pending[complete_bytes:]
        has_header = len(rest) >= HEADER_BYTES
        held = [rest]
        needed_bytes = (parse_header(rest).size_bytes if has_header else HEADER_BYTES) - len(rest)
    # Fails if the parts ended before the expected end.
    stream.finish()
