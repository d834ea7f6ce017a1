"""Content of a segment that is copied from a local log: the log itself, and new indexes.

A disk may return wrong bytes without an error. No digest shows it, because digests are computed
from what was read. So each batch of the log is checked while it is uploaded. Offset index, time
index and aborted transactions are derived from the batches, since the files that have them have no
checksums. The largest timestamp, which the manifest names before the upload, is compared.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock

from tidemark.logfiles.names import TIME_INDEX_SUFFIX
from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.logfiles.transaction_index import AbortedTxn, OpenTransactions
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    compute_crc,
    parse_header,
    require_crc,
)
from tidemark.records.control import read_end_marker
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.integrity import BatchLine

#: Held by the thread that checks the batches of a copy. The check is Python code, so more threads
#: would not be faster, and the event loop would wait for each of them in turn.
_CHECKING = Lock()
#: Entries of each index. The interval of a topic may be 0, and readers keep indexes in memory.
_ENTRIES_MAX = 1_000_000
#: Bytes of a control batch that are kept to read its marker; a marker takes 78.
_MARKER_BYTES_MAX = 64 * 1024


class LocalLogDamaged(ValueError):
    """A file of the local log is damaged, so its segment is not copied."""


class BatchIndexes:
    """Offset index and time index, built from batches as the log builds them."""

    def __init__(self, base_offset: int, log_bytes: int, interval_bytes: int) -> None:
        """Create empty indexes for a log of ``log_bytes``.

        ``interval_bytes``: bytes of the log between two entries, more for a log with too many.
        """
        self._index, self._times = OffsetIndex(base_offset), TimeIndex(base_offset)
        self._interval_bytes = max(interval_bytes, log_bytes // _ENTRIES_MAX)
        self._bytes_since_entry = 0
        #: Largest timestamp so far, -1 for none, and the last offset of its batch.
        self._largest = (-1, base_offset)

    @property
    def largest_timestamp_ms(self) -> int:
        """Largest timestamp of the batches, or -1."""
        return self._largest[0]

    def note(self, header: BatchHeader, last_offset: int, position: int, size_bytes: int) -> None:
        """Account for the next batch, and index it if an entry is due."""
        if header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self._index.append(last_offset, position)
            self._times.maybe_append(*self._largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def put_into(self, aux: Aux) -> Aux:
        """Return auxiliary data with the indexes of a log whose last batch was noted."""
        self._times.maybe_append(*self._largest)
        return replace(aux, offset_index=self._index.to_bytes(), time_index=self._times.to_bytes())


class LocalSegment:
    """Segment ``entry`` of a local log. Calls block.

    ``path``: its log file. ``aux``: its auxiliary data, in which the indexes are replaced. It has
    the aborted transactions that end behind the segment, to which those that end in it are added.
    ``index_interval_bytes``: bytes of the log between two entries of its indexes. ``open_before``:
    first offset of each producer's transaction that is open at its start, in ascending order.
    """

    def __init__(
        self,
        entry: SegmentEntry,
        path: Path,
        aux: Aux,
        index_interval_bytes: int,
        open_before: Mapping[int, int],
    ) -> None:
        self._entry, self._path, self._aux = entry, path, aux
        self._indexes = BatchIndexes(entry.start_offset, entry.size_bytes, index_interval_bytes)
        self._open = OpenTransactions(open_before)
        self._aborted: list[AbortedTxn] = []

    def log(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of the whole log, and check each batch in them as readers will.

        Raises LocalLogDamaged at the latest after the last part.
        """
        try:
            yield from self._checked(parts)
        except CorruptBatch as error:
            raise damaged_log(self._entry, self._path, str(error)) from error

    def _checked(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        line, note = _LocalLine(self._entry, self._path), self._indexes.note
        head, records, position = b"", b"", 0
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
                        header = parse_header(head)
                        last_offset, size_bytes = header.last_offset, header.size_bytes
                        # No CRC covers the base offset and the leader epoch.
                        line.follow(header.base_offset, last_offset, position, size_bytes)
                        line.check_epoch(header)
                        note(header, last_offset, position, size_bytes)
                        position, left = position + size_bytes, size_bytes - HEADER_BYTES
                        crc = compute_crc(head, CRC_COVERS_FROM, HEADER_BYTES)
                    # The records, as far as they are in this part.
                    end = min(at + left, len(part))
                    crc, left = compute_crc(part, at, end, crc), left - (end - at)
                    if header.is_control and size_bytes <= _MARKER_BYTES_MAX:
                        records += part[at:end]
                    at = end
                    if not left:
                        require_crc(header, crc)
                        if header.is_transactional:
                            self._note_transaction(header, head + records)
                        head = records = b""
            yield part
        if head:
            raise CorruptBatch("it ends within a batch")
        line.finish()

    def aux(self) -> Aux:
        """Return the auxiliary data; only after :meth:`log` was read to its end.

        Raises LocalLogDamaged if the largest timestamp of the manifest's entry, which is from the
        local time index, is not that of the batches.
        """
        # Without timestamps, the entry has the time of the last append.
        largest_ms, named_ms = self._indexes.largest_timestamp_ms, self._entry.max_timestamp_ms
        if largest_ms >= 0 and largest_ms != named_ms:
            path = self._path.with_suffix(TIME_INDEX_SUFFIX)
            raise LocalLogDamaged(
                f"broker {self._entry.broker_id}: {path} is damaged, so its segment is not copied: "
                f"the largest timestamp is {largest_ms}, not {named_ms}. Elect another replica, or "
                f"cut the file to one byte (truncate -s 1 {path}) and restart this broker, which "
                "rebuilds it"
            )
        aborted = self._aux.aborted
        ended = AbortedRanges((*self._aborted, *aborted.transactions), aborted.first_open_offset)
        return self._indexes.put_into(replace(self._aux, aborted=ended))

    def _note_transaction(self, header: BatchHeader, batch: bytes) -> None:
        producer_id, offset = header.producer_id, header.base_offset
        if not header.is_control:
            self._open.note_data(producer_id, offset)
            return
        # Compaction leaves markers without a record, whose transactions have no data.
        marker = read_end_marker(batch)
        if marker is None:
            return
        aborted = self._open.end(producer_id, offset, is_commit=marker.is_commit)
        if aborted is not None:
            self._aborted.append(aborted)


def damaged_log(entry: SegmentEntry, path: Path, what: str) -> LocalLogDamaged:
    """Return the error for a local log, with the remedy."""
    return LocalLogDamaged(
        f"broker {entry.broker_id}: {path} is damaged and not copied: {what}. Elect a replica "
        f"whose log is sound, then stop this broker, remove {path.parent} or replace the disk, and "
        "start it. If no log is sound, give up the records with a RecordDeletion "
        f"before offset {entry.end_offset_inclusive + 1}"
    )


class _LocalLine(BatchLine):
    """Sequence of the batches of a local log, which is about to become the segment ``entry``."""

    def __init__(self, entry: SegmentEntry, path: Path) -> None:
        super().__init__(entry, str(path))
        self._path = path
        self._least_epoch = -1
        #: Epochs that begin behind the last batch, and the epoch that is in force there.
        self._later = deque(entry.leader_epochs)
        self._named = self._later.popleft()[0] if self._later else -1
        self._first_epoch = max(0, self._named)

    def check_epoch(self, header: BatchHeader) -> None:
        """Check that a batch is of the leader epoch that the entry names for its offset.

        Raises LocalLogDamaged.
        """
        epoch, offset = header.partition_leader_epoch, header.base_offset
        # Epochs that begin with this batch, or that end before it.
        while self._later and self._later[0][1] <= offset:
            self._named = self._later.popleft()[0]
        if epoch == self._named:
            self._least_epoch = epoch
            return
        # The entry does not name the epochs that ended below the log start.
        if not self._least_epoch <= epoch < self._first_epoch:
            raise self._damaged(
                f"the batch at offset {offset} is of leader epoch {epoch}, "
                f"leader-epoch-checkpoint says {self._named}"
            )
        self._least_epoch = epoch

    def _damaged(self, what: str) -> Exception:
        return damaged_log(self._entry, self._path, what)
