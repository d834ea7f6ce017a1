"""The plug-in's tier as the readers of records use a tier: topics, snapshots, and bytes of logs.

A snapshot is a listing of a partition's folder and the manifests of its complete segments, as a
head that has all of them (:mod:`~tidemark_pipeline.aiven.segment_line` chooses them). Manifests are
read once: the plug-in gives each copy a new id.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidemark.ids import id_text
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs
from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark.logfiles.transaction_index import AbortedTxn, TransactionIndexError, decode_aborted
from tidemark.message_text import count
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.head import Head
from tidemark.tier.metadata.manifest import HeadNotFound
from tidemark.tier.metadata.queries import SegmentRange, TierOffsetOutOfRange
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicAmbiguous, TopicNotFound, TopicObject
from tidemark.tier.open import open_store
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import BatchLine, ObjectDamaged, damaged
from tidemark.tier.stores.config import RemoteStorage
from tidemark.tier.stores.objects import ObjectNotFound, ObjectStore, Version
from tidemark.tiering import Tiering, TieringState
from tidemark_pipeline.aiven import segment_line
from tidemark_pipeline.aiven.layout import (
    INDEXES,
    LOG,
    MANIFEST,
    AivenLayout,
    TopicFolder,
    complete_segments,
    topic_of,
)
from tidemark_pipeline.aiven.manifest import (
    LEADER_EPOCH,
    OFFSET,
    TIMESTAMP,
    TRANSACTION,
    ChunkDamaged,
    Chunks,
    Manifest,
    Transformation,
    parse,
)

_MANIFESTS_AT_ONCE = 16
#: Manifests that a thread reads in a row: handing over each of a million takes as long as its read.
_MANIFESTS_IN_A_ROW = 64
_MANIFEST_BYTES_MAX = 16 * 1024 * 1024
_SEGMENTS_MAX = 1_000_000
#: More than Kafka lets a topic have. Each number below the highest costs a listing.
_PARTITIONS_MAX = 100_000
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class _LoadedSegment:
    """Segment of a snapshot, with the transactions whose abort markers are in it."""

    entry: SegmentEntry
    aborted: tuple[AbortedTxn, ...]


class AivenTier:
    """Tier in the plug-in's layout. ``reader`` and ``segments`` as in
    :class:`~tidemark.tier.open.Tier`. Calls block.
    """

    def __init__(self, config: RemoteStorage, layout: AivenLayout) -> None:
        store = open_store(config)
        self.segments = AivenSegments(store, layout)
        self.reader = AivenReader(store, layout, self.segments)

    def topic_names(self) -> set[str]:
        """Return the names of all topics. Raises StoreUnavailable."""
        return {folder.topic for folder in self.reader.folders()}


class AivenReader:
    """Reader of topics and of the segments of each partition."""

    def __init__(self, store: ObjectStore, layout: AivenLayout, segments: "AivenSegments") -> None:
        self._store, self._layout, self._segments = store, layout, segments
        #: Segments of the last snapshot of each partition, by key.
        self._known: dict[tuple[uuid.UUID, int], dict[str, _LoadedSegment]] = {}
        #: Folders that were listed last, by topic id.
        self._folders: dict[uuid.UUID, TopicFolder] = {}

    def folders(self) -> list[TopicFolder]:
        """List the folders of topics."""
        names = self._store.folders("")
        found = [topic_of(name, self._layout.name_prefix) for name in names]
        folders = [folder for folder in found if folder is not None]
        self._folders = {folder.topic_id: folder for folder in folders}
        return folders

    def find_topic(self, name: str) -> TopicObject:
        """Return the topic of this name. Raises TopicNotFound, TopicAmbiguous."""
        folders = self.folders()
        found = [folder for folder in folders if folder.topic == name]
        if self._layout.topic_id is not None:
            found = [folder for folder in found if folder.topic_id == self._layout.topic_id]
        if not found:
            raise TopicNotFound(
                f"no topic {name!r} in {self._store.describe()}: the plug-in copied nothing of it, "
                "or the option 'prefix' is not its key.prefix, with every slash"
            )
        # Objects of a deleted topic may remain, or its deletion is under way.
        if len(found) > 1:
            ids = ", ".join(id_text(folder.topic_id) for folder in found)
            raise TopicAmbiguous(
                f"{name!r} is the name of several topics in {self._store.describe()} ({ids}): name "
                "the id of one by the option 'topicId'"
            )
        # Parts and segments are known by the id, so a copy could be read instead of the topic.
        same = [folder.folder for folder in folders if folder.topic_id == found[0].topic_id]
        if len(same) > 1:
            raise TopicAmbiguous(
                f"the folders {' and '.join(sorted(same))} in {self._store.describe()} have the id "
                "of one topic, and one is a copy: move it out of the option 'prefix'"
            )
        return self._topic_of(found[0])

    def topic(self, topic_id: uuid.UUID) -> TopicObject:
        """Return the topic of this id. Raises TopicNotFound."""
        return self._topic_of(self._folder(topic_id))

    def snapshot(self, topic_id: uuid.UUID, partition: int) -> Snapshot:
        """Return the segments of a partition at this moment.

        Raises HeadNotFound if nothing of it was copied, ManifestCorrupt, PrivateKeyMissing,
        StoreUnavailable.
        """
        try:
            folder = self._folder(topic_id)
        except TopicNotFound as error:
            raise HeadNotFound(str(error)) from error
        known = self._load(folder, partition)
        newest = segment_line.newest(item.entry for item in known.values())
        if newest is None:
            raise HeadNotFound(f"nothing of {folder.topic}-{partition} was copied")
        # Segments that overlap are reduced to one for each offset.
        try:
            lineage = self._lineage(self._segments.manifest(newest.key))
        # The newest segment is deleted last, with its topic.
        except ObjectNotFound as error:
            raise HeadNotFound(f"{folder.topic}-{partition} is being deleted") from error
        entries = segment_line.line((item.entry for item in known.values()), lineage)
        entries = segment_line.with_details(
            entries,
            {key: item.entry.end_offset_inclusive for key, item in known.items()},
            # Behind the valid part of a segment, its index names markers that the log lost.
            (
                aborted
                for entry in entries
                for aborted in known[entry.key].aborted
                if aborted.last_offset <= entry.end_offset_inclusive
            ),
        )
        head = Head(
            topic=folder.topic,
            topic_id=topic_id,
            partition=partition,
            cluster_id="",
            leader_epoch=newest.end_leader_epoch,
            tiering=Tiering(TieringState.ENABLED, 0),
            broker_id=newest.broker_id,
            log_start_offset=lineage.entries[0].start_offset,
            floor_epoch=0,
            line_start_offset=entries[0].from_offset,
            entries=entries,
        )
        return Snapshot(head, Version(""), {})

    def plan(
        self, topic_id: uuid.UUID, partition: int, start_offset: int, until_offset: int
    ) -> tuple[Snapshot, tuple[SegmentRange, ...]]:
        """Return a snapshot and the segments that serve the offsets.

        Raises TierOffsetOutOfRange, also if nothing is left.
        """
        try:
            snapshot = self.snapshot(topic_id, partition)
        except HeadNotFound as error:
            raise TierOffsetOutOfRange(str(error), log_start_offset=until_offset) from error
        return snapshot, snapshot.plan(start_offset, until_offset)

    def expired_below(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """Return the offset below which missing objects have expired, None for a deleted topic.

        Kafka deletes the oldest objects first.
        """
        try:
            head = self.snapshot(topic_id, partition).head
        except HeadNotFound:
            return None
        first = head.remote_log_start_offset
        return head.log_start_offset if first is None else first

    def _folder(self, topic_id: uuid.UUID) -> TopicFolder:
        if topic_id not in self._folders:
            self.folders()
        folder = self._folders.get(topic_id)
        if folder is None:
            raise TopicNotFound(f"no topic with id {id_text(topic_id)} in {self._store.describe()}")
        return folder

    def _topic_of(self, folder: TopicFolder) -> TopicObject:
        names = self._store.folders(f"{folder.folder}/")
        # Other folders, such as one named by a date, are those of other programs.
        numbers = (int(name) for name in names if _PARTITION.fullmatch(name))
        partitions = [number for number in numbers if number < _PARTITIONS_MAX]
        return TopicObject(
            topic_id=folder.topic_id,
            name=folder.topic,
            cluster_id="",
            # A partition of which nothing was copied yet has no folder.
            partitions=max(partitions, default=-1) + 1,
        )

    def _load(self, folder: TopicFolder, partition: int) -> dict[str, _LoadedSegment]:
        """Return the complete segments of a partition by key; only new ones are read."""
        known = self._known.get((folder.topic_id, partition), {})
        keys = list(complete_segments(self._store.list(f"{folder.folder}/{partition}/")))
        if len(keys) > _SEGMENTS_MAX:
            raise ManifestCorrupt(
                f"{folder.topic}-{partition} has {count(len(keys), 'segment')}, at most "
                f"{_SEGMENTS_MAX} are read: use larger segments (segment.bytes)"
            )
        missing = [key for key in keys if key not in known]
        loaded: list[_LoadedSegment | None] = []
        if missing:
            # Few manifests are divided among all threads, as each is a request to the store.
            size = max(1, min(_MANIFESTS_IN_A_ROW, len(missing) // _MANIFESTS_AT_ONCE))
            rows = [missing[at : at + size] for at in range(0, len(missing), size)]
            with ThreadPoolExecutor(_MANIFESTS_AT_ONCE, "manifests") as threads:
                for row in threads.map(self._read_row, rows):
                    loaded += row
        known = {key: known[key] for key in keys if key in known}
        # A segment that was deleted after the listing is not part of the snapshot.
        known |= {key: item for key, item in zip(missing, loaded, strict=True) if item is not None}
        self._known[folder.topic_id, partition] = known
        return known

    def _read_row(self, keys: Sequence[str]) -> list[_LoadedSegment | None]:
        return [self._read(key) for key in keys]

    def _read(self, key: str) -> _LoadedSegment | None:
        try:
            manifest = self._segments.manifest(key)
            if not manifest.indexes.get(TRANSACTION, (0, 0))[1]:
                return _LoadedSegment(manifest.entry, ())
            data = self._segments.index(manifest, TRANSACTION)
        except ObjectNotFound:
            return None
        try:
            return _LoadedSegment(manifest.entry, tuple(decode_aborted(data)))
        except TransactionIndexError as error:
            raise self._segments.damaged(manifest.entry, INDEXES, str(error)) from error

    def _lineage(self, manifest: Manifest) -> LeaderEpochs:
        """Return the leader epochs of the log up to the end of its newest segment."""
        data = self._segments.index(manifest, LEADER_EPOCH)
        try:
            lineage = read_epochs(data.decode("ascii"))
        except (CheckpointFormatError, UnicodeDecodeError) as error:
            what = f"its leader epochs are no checkpoint ({error})"
            raise self._segments.damaged(manifest.entry, INDEXES, what) from error
        entry = manifest.entry
        is_whole = lineage.latest_epoch == entry.end_leader_epoch and [
            item.end_offset_inclusive for item in segment_line.line([entry], lineage)
        ] == [entry.end_offset_inclusive]
        if not is_whole:
            what = "its leader epochs are not those of its manifest"
            raise self._segments.damaged(manifest.entry, INDEXES, what)
        return lineage


class AivenSegments:
    """Reader of logs and indexes, with the methods of Tidemark's RemoteStorageManager that readers
    use.

    Raises ObjectNotFound, ObjectDamaged, PrivateKeyMissing, StoreUnavailable.
    """

    def __init__(self, store: ObjectStore, layout: AivenLayout) -> None:
        self._store, self._keys = store, layout.keys
        #: Segment that was opened last, with the transformation of its bytes.
        self._last: tuple[Manifest, Transformation] | None = None
        #: Key, number and bytes of the chunk that was read last: the next read may continue in it.
        self._last_chunk: tuple[str, int, bytes] = ("", 0, b"")

    def manifest(self, key: str) -> Manifest:
        """Return the manifest of a segment. Raises ManifestCorrupt."""
        data = bytes(self._store.get_range(key + MANIFEST, 0, _MANIFEST_BYTES_MAX + 1))
        where = f"{key}{MANIFEST} in {self._store.describe()}"
        if len(data) > _MANIFEST_BYTES_MAX:
            raise ManifestCorrupt(f"{where} has more than {_MANIFEST_BYTES_MAX} bytes")
        return parse(data, key, where)

    def index(self, manifest: Manifest, name: str) -> bytes:
        """Return an index of a segment."""
        position, size = manifest.indexes[name]
        end = position + size
        stored = bytes(self._store.get_range(manifest.entry.key + INDEXES, position, end))
        # Nothing else would notice that the end of an index is missing.
        if len(stored) != size:
            what = f"{name} index: {len(stored)} of its {size} bytes are there"
            raise self.damaged(manifest.entry, INDEXES, what)
        try:
            return self._open(manifest).open(stored) if size else b""
        except ChunkDamaged as error:
            raise self.damaged(manifest.entry, INDEXES, f"{name} index: {error}") from error

    def reads_parts(self, entry: SegmentEntry) -> bool:
        """Return whether a part of a segment can be read alone: chunks make that possible."""
        del entry
        return True

    def batch_line(self, entry: SegmentEntry, expected: int | None = None) -> BatchLine:
        """Return the check of a segment's batches. A log that was compacted before has gaps."""
        end = segment_line.copied_end(entry)
        return BatchLine(entry, self.describe(entry), expected, copied_end=end)

    def fetch(
        self, entry: SegmentEntry, start: int, end_exclusive: int, frames: Frames | None = None
    ) -> bytes:
        """Return bytes of the segment's log from position ``start``, cut off at its end."""
        del frames
        end = min(end_exclusive, entry.size_bytes)
        if start >= end:
            return b""
        manifest, transformation = self._opened(entry.key)
        # Damaged chunks are an error of a log that is stored byte for byte, too.
        chunks = manifest.chunks()
        if transformation.is_identity:
            return bytes(self._store.get_range(entry.log_key, start, end))
        numbers = chunks.containing(start, end)
        begin = start - numbers.start * chunks.chunk_bytes
        data = b"".join(self._chunks(manifest.entry, chunks, transformation, numbers))
        return data[begin : begin + end - start]

    def fetch_aux(self, entry: SegmentEntry) -> Aux:
        """Return the indexes of a segment that readers use, and its aborted transactions."""
        manifest, _ = self._opened(entry.key)
        return Aux(
            offset_index=self.index(manifest, OFFSET),
            time_index=self.index(manifest, TIMESTAMP),
            leader_epochs=b"",
            producer_snapshot=b"",
            aborted=AbortedRanges(tuple(segment_line.aborted_of(entry))),
        )

    def describe(self, entry: SegmentEntry) -> str:
        """Return a segment's location for messages."""
        del entry
        return self._store.describe()

    def damaged(self, entry: SegmentEntry, suffix: str, what: str) -> ObjectDamaged:
        """Return the error for an object of a segment."""
        return damaged(entry, entry.key + suffix, self._store.describe(), what)

    def _opened(self, key: str) -> tuple[Manifest, Transformation]:
        last = self._last
        if last is None or last[0].entry.key != key:
            manifest = self.manifest(key)
            return manifest, self._open(manifest)
        return last

    def _open(self, manifest: Manifest) -> Transformation:
        # Decrypting the data key takes longer than a small read.
        last = self._last
        if last is None or last[0].entry.key != manifest.entry.key:
            what = f"{manifest.entry.key}{LOG} in {self._store.describe()}"
            last = (manifest, Transformation.of(manifest, self._keys, what))
            self._last = last
        return last[1]

    def _chunks(
        self, entry: SegmentEntry, chunks: Chunks, transformation: Transformation, numbers: range
    ) -> Iterator[bytes]:
        """Yield chunks of a log, fetched by one request."""
        # The last read may have ended within the first chunk.
        key, number, chunk = self._last_chunk
        if key == entry.key and number == numbers.start:
            yield chunk
            numbers = numbers[1:]
        if not numbers:
            return
        # Stored chunks are contiguous.
        begin = chunks.stored_start(numbers.start)
        end = chunks.stored_ends[numbers[-1]]
        stored = bytes(self._store.get_range(entry.log_key, begin, end))
        for number in numbers:
            piece = stored[chunks.stored_start(number) - begin : chunks.stored_ends[number] - begin]
            # An error names the chunk, so that its bytes can be compared with a copy.
            try:
                chunk = transformation.log_chunk(piece, chunks.size_of(number))
            except ChunkDamaged as error:
                raise self.damaged(entry, LOG, f"chunk {number}: {error}") from error
            self._last_chunk = (entry.key, number, chunk)
            yield chunk
