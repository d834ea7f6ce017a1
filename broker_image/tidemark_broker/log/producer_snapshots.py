"""Snapshot files (``.snapshot``) of one log, and the rebuilding of its producers' state from them.

A snapshot has the producers' state at the offset in the file name. One is created at each roll and
when the log is closed. A roll creates it in memory, and a thread writes it at the next flush. A
snapshot is deleted with the segment that starts at its offset.

:func:`rebuild` replays the batches after the last intact snapshot when a log is opened, and after a
truncation. If a crash lost a segment's transaction index, it is rebuilt from the batches too. Then
everything from that segment is replayed, its snapshots included.
"""

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tidemark.logfiles import names
from tidemark.logfiles.producer_snapshot import (
    ProducerEntry,
    SnapshotFormatError,
    checked_entries,
    decode_snapshot,
)
from tidemark.logfiles.transaction_index import AbortedTxn, OpenTransactions
from tidemark.records.batch import CorruptBatch
from tidemark_broker.log.batch_walk import walk_produced
from tidemark_broker.log.errors import CorruptRecords, StorageError, storage_errors
from tidemark_broker.log.files import put
from tidemark_broker.log.producer_entry import ProducerBatch, producer_batch
from tidemark_broker.log.producer_states import ProducerStates
from tidemark_broker.log.segment import Segment, wall_clock_ms

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """Snapshots of one directory. One thread at a time may call the blocking methods."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unsaved: dict[int, bytes] = {}

    def take(self, offset: int, data: bytes) -> None:
        """Hold the state at ``offset`` until :meth:`save`."""
        self._unsaved[offset] = data

    def save(self, offset: int) -> None:
        """Write the snapshot of ``offset``, if it was taken and is not written yet. Blocks."""
        data = self._unsaved.get(offset)
        if data is not None:
            path = self.path(offset)
            with storage_errors(f"{path} cannot be written"):
                path.write_bytes(data)
            self._unsaved.pop(offset, None)

    def put(self, offset: int, data: bytes) -> None:
        """Write a snapshot of ``offset`` durably. Blocks."""
        path = self.path(offset)
        with storage_errors(f"{path} cannot be written"):
            put(path, data)

    def at(self, offset: int) -> bytes | None:
        """Return the snapshot of ``offset``, None if there is no intact one. Blocks."""
        # A snapshot in memory replaces a file of the same offset.
        data = self._unsaved.get(offset)
        if data is None:
            try:
                data = self.path(offset).read_bytes()
                checked_entries(data)
            except (OSError, SnapshotFormatError):
                return None
        return data

    def latest(
        self, at_most: int, passed: Container[int] = ()
    ) -> tuple[int, tuple[ProducerEntry, ...]] | None:
        """Return offset and content of the latest intact snapshot not above ``at_most``. Blocks.

        Snapshots at the offsets in ``passed`` are skipped, damaged ones removed. None if there is
        none.
        """
        # The newest first: a later snapshot leaves less of the log to replay.
        for offset in sorted({*self._unsaved, *self._saved()}, reverse=True):
            if offset > at_most or offset in passed:
                continue
            data = self._unsaved.get(offset)
            try:
                content = decode_snapshot(self.path(offset).read_bytes() if data is None else data)
            except (OSError, SnapshotFormatError) as error:
                logger.warning("%s: %s; an earlier one is used", self.path(offset), error)
                self._remove((offset,))
            else:
                return offset, content
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots above ``offset``. Blocks."""
        for item in [item for item in self._unsaved if item > offset]:
            del self._unsaved[item]
        self._remove(item for item in self._saved() if item > offset)

    def remove_all_but(self, offset: int | None) -> None:
        """Remove all other snapshots, unwritten ones included. Blocks."""
        self._unsaved.clear()
        self._remove(item for item in self._saved() if item != offset)

    def keep_only(self, offsets: Iterable[int]) -> None:
        """Remove the snapshots of other offsets. Blocks."""
        kept = frozenset(offsets)
        self._remove(item for item in self._saved() if item not in kept)

    def path(self, offset: int) -> Path:
        """Return the path of the snapshot of that offset."""
        return self.directory / names.segment_file_name(offset, names.PRODUCER_SNAPSHOT_SUFFIX)

    def _saved(self) -> list[int]:
        with storage_errors(f"{self.directory} cannot be read"):
            found = [
                names.parse_segment_file_name(path.name)
                for path in self.directory.glob(f"*{names.PRODUCER_SNAPSHOT_SUFFIX}")
            ]
        return [parsed[0] for parsed in found if parsed is not None]

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._unsaved.pop(offset, None)
            with storage_errors(f"snapshots in {self.directory} cannot be removed"):
                self.path(offset).unlink(missing_ok=True)


#: Bytes at the end of a recently written log that are replayed, however many producers it has.
_RECALLED_BYTES = 256 * 1024
_RECENT_MS = 600_000


def rebuild(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    *,
    indexed_below: int,
    high_watermark: int,
) -> None:
    """Rebuild the producers' state at the log end from the last snapshot and the batches. Blocks.

    Until it returns, ``first_unstable_offset`` keeps its former value for readers. ``segments``:
    all segments of the log. The transaction indexes of those at or above ``indexed_below`` are
    empty and are filled. Raises :class:`CorruptRecords` for an unreadable transaction marker.
    """
    with producers.replaying():
        end = segments[-1].next_offset
        # A snapshot omits transactions that ended by markers not committed yet, so one above the
        # high watermark is not usable. The snapshot of a clean shutdown omits none.
        incomplete = {item.base_offset for item in segments if item.base_offset > high_watermark}
        found = snapshots.latest(min(indexed_below, end), incomplete)
        begin, entries = (segments[0].base_offset, ()) if found is None else found
        # A snapshot has only the last batch of each producer. Batches before it restore the others,
        # so that retries of a producer's last five batches are recognised.
        producers.load(entries)
        if entries:
            producers.add_recent_batches(_recent_batches_before(segments, begin))
        snapshots.remove_above(max(begin, indexed_below))
        # Apply the batches after the snapshot; where the transaction index is empty, fill it as
        # well.
        for segment in segments:
            if segment.next_offset <= begin:
                continue
            is_replayed = segment.base_offset >= indexed_below
            if is_replayed and segment.base_offset > begin:
                snapshots.take(segment.base_offset, producers.snapshot())
                try:
                    snapshots.save(segment.base_offset)
                except StorageError as error:  # a full disk must not prevent that a log opens
                    logger.warning(
                        "%s (kept in memory; a crash replays from an earlier one)", error
                    )
            for batch in _produced(segment, begin):
                aborted = producers.note(batch)
                if aborted is not None and is_replayed:
                    segment.aborted.append(aborted)
            if is_replayed and segment is not segments[-1]:
                segment.aborted.saved(segment.aborted.save())
        producers.on_high_watermark(high_watermark)


def replayed(snapshots: ProducerSnapshots, segments: Sequence[Segment]) -> bytes:
    """Return the snapshot at the end of the last segment, from the batches. Blocks.

    ``segments``: pinned, from the log's first one. Raises :class:`CorruptRecords` for an unreadable
    transaction marker.
    """
    producers, first = ProducerStates(), len(segments)
    # The latest intact snapshot before it saves the replay of older segments.
    data = None
    while first and data is None:
        first -= 1
        data = snapshots.at(segments[first].base_offset)
    if data is not None:
        producers.load(decode_snapshot(data))
    try:
        for segment in segments[first:]:
            for batch in _produced(segment, segment.base_offset):
                producers.note(batch)
                # All are committed. Otherwise each is compared with all ended ones before it.
                producers.on_high_watermark(batch.last_offset + 1)
    finally:
        for segment in segments:
            segment.unload()
    return producers.snapshot()


class TransactionEnds:
    """Ends of a log's transactions, for copies of its segments in their order.

    A transaction may end many segments behind its first one, and others overlap it. So each copy
    continues where the one before it stopped.
    """

    def __init__(self) -> None:
        self._open = OpenTransactions({})
        #: Offset up to which batches were read.
        self.read_to = 0
        #: Aborted transactions that began in an earlier segment than that of their marker.
        self._aborted: list[AbortedTxn] = []

    def left(self, open_at_end: Mapping[int, int], offset: int) -> dict[int, int]:
        """Return those of the transactions open at ``offset`` whose markers were not read yet.

        ``open_at_end``: first offset of each producer's one, in ascending order. ``offset``: end of
        the next segment to copy. What ended before it is forgotten.
        """
        self._aborted = [item for item in self._aborted if item.last_offset >= offset]
        if self.read_to < offset:
            self._open, self.read_to = OpenTransactions(open_at_end), offset
        still_open = self._open.first_offsets
        return {
            producer_id: first
            for producer_id, first in open_at_end.items()
            if still_open.get(producer_id) == first
        }

    def read(self, segment: Segment, left: dict[int, int]) -> None:
        """Read a pinned segment until no transaction is ``left``. Blocks.

        Those whose markers were read are removed from ``left``.
        """
        try:
            for batch in _produced(segment, self.read_to):
                # Kept for each batch, so that a read that fails is continued.
                self.read_to = batch.last_offset + 1
                if batch.marker is None:
                    if batch.is_transactional:
                        self._open.note_data(batch.producer_id, batch.base_offset)
                    continue
                is_commit = batch.marker.is_commit
                aborted = self._open.end(batch.producer_id, batch.last_offset, is_commit=is_commit)
                # One within a segment is described by that segment.
                if aborted is not None and aborted.first_offset < segment.base_offset:
                    self._aborted.append(aborted)
                if left.pop(batch.producer_id, None) is not None and not left:
                    return
            self.read_to = segment.next_offset
        finally:
            segment.unload()

    def aborted(self, open_at_end: Mapping[int, int]) -> tuple[AbortedTxn, ...]:
        """Return those of the transactions that were aborted, in the order of their markers."""
        return tuple(
            item for item in self._aborted if open_at_end.get(item.producer_id) == item.first_offset
        )


def _recent_batches_before(segments: Sequence[Segment], offset: int) -> Iterator[ProducerBatch]:
    """Yield the last idempotent producers' batches below ``offset``, if they are recent.

    Their clients may still retry them, and a snapshot has only one batch of each producer.
    """
    before = [item for item in segments if item.next_offset <= offset and item.size_bytes]
    chosen, left = [], _RECALLED_BYTES
    for segment in reversed(before):
        # Clients give up retries after some minutes, so older batches are not sent again.
        if left <= 0 or wall_clock_ms() - segment.modified_ms >= _RECENT_MS:
            break
        chosen.append((segment, left))
        left -= segment.size_bytes
    for segment, last_bytes in reversed(chosen):
        yield from _produced(segment, 0, last_bytes=last_bytes)


def _produced(
    segment: Segment, begin: int, *, last_bytes: int | None = None
) -> Iterator[ProducerBatch]:
    """Yield the idempotent producers' batches of a segment from offset ``begin``. Blocks.

    With ``last_bytes`` only about the last ``last_bytes`` bytes of the segment are read.
    """
    was_open = segment.descriptor is not None
    segment.open_file()
    assert segment.descriptor is not None
    position = 0 if last_bytes is None else _position_before_end(segment, last_bytes)
    try:
        for at, header in walk_produced(segment.descriptor, position, segment.size_bytes):
            if at.base_offset < begin:
                continue
            # Only markers need their record; data batches are described by their headers.
            data = segment.bytes_of(at.position, at.end_position) if header.is_control else b""
            batch = producer_batch(header, data)
            if batch is not None:
                yield batch
    except CorruptBatch as error:
        raise CorruptRecords(f"{segment.log_path}: {error}") from error
    finally:
        if not was_open:
            segment.unload()


def _position_before_end(segment: Segment, count_bytes: int) -> int:
    """Return the position of a batch at least ``count_bytes`` before the end, or of the first
    one.
    """
    if count_bytes >= segment.size_bytes:
        return 0
    segment.load()
    assert segment.index is not None
    return segment.index.floor_position(
        max(0, segment.size_bytes - count_bytes), segment.next_offset
    )
