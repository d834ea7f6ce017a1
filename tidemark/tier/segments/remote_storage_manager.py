"""Storage manager that copies segments to and from the object store (Kafka's RemoteStorageManager).

Each segment has two objects, ``.log`` and ``.aux``. Copying is repeatable and overwrites; deleting
a missing segment succeeds; a copy is readable when ``copy_segment`` returns.

A log that compresses well, and every log of a store with encryption keys, is stored as ``frames``.
The sizes of entries, positions and digests are those of the log itself.

KIP-917: ``copy_segment`` returns custom metadata that is opaque to all other components, here
compact JSON: ``{"b": bucket, "n": stored bytes, indexes included, "l": stored bytes of the log}``
(no ``b`` for a directory, no ``l`` without frames).
With several buckets a hash of the segment id selects one. The custom metadata decides where a
segment is stored, whatever the configuration is later. A copy that was never finished has none, so
its objects are deleted in every configured bucket. The caller checks the size of the metadata.
"""

import hashlib
import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tidemark.reasons import Reason
from tidemark.records.batch import Buffer
from tidemark.tier.metadata.layout import topic_data_prefix
from tidemark.tier.metadata.segment import Digests, SegmentEntry
from tidemark.tier.segments.auxiliary import Aux, AuxCorrupt, check_version, pack, unpack_opened
from tidemark.tier.segments.frames import Frames, FrameWriter, is_compressible
from tidemark.tier.segments.integrity import (
    COPY_ALGORITHM,
    PIECE_BYTES,
    BatchLine,
    LogDigest,
    damaged,
    digest_of,
    log_digest,
)
from tidemark.tier.segments.local_segment import LocalSegment
from tidemark.tier.segments.sealing import DataKey, open_aux, seal_aux
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.key_ring import NO_KEYS, KeyRing
from tidemark.tier.stores.objects import (
    NO_BUCKET,
    DeletesRefused,
    NotInMemory,
    ObjectInfo,
    ObjectStore,
    ObjectTooLarge,
    StoreUnavailable,
)

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentData:
    """Segment to copy: a closed, fsynced log file of ``size_bytes``, and its auxiliary data.

    ``compress``: compress the log if its first piece becomes notably smaller.
    ``index_interval_bytes``, ``open_before``: see :class:`LocalSegment`.
    """

    log: Path
    size_bytes: int
    aux: Aux
    compress: bool = False
    index_interval_bytes: int = 4096
    open_before: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a copy, to be recorded in the manifest: see KIP-917, and ``integrity``."""

    custom_metadata: bytes | None
    digests: Digests


class RemoteStorageManager:
    """Storage manager over one store per bucket, in the configured order. Calls block.

    Raises ObjectNotFound if a segment's object is missing, ObjectDamaged if it was changed,
    SegmentUnreadable if its key is missing or its version is newer, and another StoreUnavailable if
    the store fails.
    """

    def __init__(self, buckets: Mapping[str, ObjectStore], keys: KeyRing = NO_KEYS) -> None:
        """Use these stores. ``keys`` encrypt new segments; without keys they are in the clear."""
        if not buckets:
            raise ValueError("a storage manager needs at least one bucket")
        self._buckets = dict(buckets)
        self.keys = keys
        self._names = tuple(buckets)

    @property
    def stores(self) -> Mapping[str, ObjectStore]:
        """Store of each bucket."""
        return self._buckets

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        """Upload a segment's log and its auxiliary object; return its location and digests.

        The segment id selects the bucket. The log is hashed while it is uploaded, and the auxiliary
        object contains the digests of its pieces. Auxiliary data that says that the batches are
        sound is verified, and its indexes are built from the batches: damage raises
        LocalLogDamaged. Raises ValueError if the local file cannot be read.
        """
        with data.log.open("rb", buffering=0) as log:
            parts = _parts(log.fileno(), data.size_bytes)
            if not data.aux.has_sound_batches:
                return self.store_segment(entry, parts, lambda: data.aux, compress=data.compress)
            local = LocalSegment(
                entry, data.log, data.aux, data.index_interval_bytes, data.open_before
            )
            return self.store_segment(entry, local.log(parts), local.aux, compress=data.compress)

    def store_segment(
        self,
        entry: SegmentEntry,
        parts: Iterable[bytes],
        aux_of: Callable[[], Aux],
        *,
        compress: bool = False,
    ) -> Copied:
        """Upload a segment from the parts of its log, as they are produced; see
        :meth:`copy_segment`.

        ``aux_of``: returns the auxiliary data once all parts were produced. Raises the iterator's
        error.
        """
        # The id is random, so its hash spreads segments evenly over the buckets.
        bucket = self._choose(entry)
        store = self._buckets[bucket]
        algorithm = COPY_ALGORITHM
        digest = LogDigest(algorithm)
        # The header first: without a key, nothing is uploaded.
        key = DataKey.create(entry.key) if self.keys.active_id else None
        header = b"" if key is None else key.wrapped(self.keys)
        # The first piece decides about all of them, so that the parts are read only once.
        rest = _hashed(parts, digest)
        first = _first_piece(rest) if compress else b""
        compress = compress and is_compressible(first[:PIECE_BYTES])
        log = itertools.chain((first,) if first else (), rest)
        frames = FrameWriter(key, algorithm, is_compressed=compress) if compress or key else None
        store.put_stream(entry.log_key, log if frames is None else frames.encode(log))
        pieces = digest.finish()
        table = None if frames is None else frames.finish()
        aux = pack(replace(aux_of(), pieces=pieces, algorithm=algorithm, frames=table))
        stored = aux if key is None else seal_aux(aux, key, header)
        # The auxiliary object is last: a copy with both objects is complete.
        store.put(entry.aux_key, stored)
        log_bytes = entry.size_bytes if table is None else table.stored_bytes
        custom = encode_custom_metadata(
            bucket, log_bytes + len(stored), None if table is None else log_bytes
        )
        # The digests are those of the content, so a rotation leaves them valid.
        digests = Digests(algorithm, log_digest(pieces, algorithm), digest_of(aux, algorithm))
        return Copied(custom, digests)

    def fetch(
        self, entry: SegmentEntry, start: int, end_exclusive: int, frames: Frames | None = None
    ) -> bytes:
        """Return bytes of the segment's log from position ``start``, cut off at its end.

        ``frames``: of the segment's auxiliary object, which is read if they are needed and not
        given.
        """
        # The manifest's size bounds the read, whatever the object's size is.
        end = min(end_exclusive, entry.size_bytes)
        if start >= end:
            return b""
        if frames is None and _has_frames(entry):
            frames = self.fetch_aux(entry).frames
        (stored,) = self.fetch_stored(entry, [(start, end)], frames)
        return self.decode(entry, stored, start, end, frames)

    def fetch_stored(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]], frames: Frames | None
    ) -> Sequence[Buffer]:
        """Return the stored form of consecutive parts of the segment's log, read in one request.

        ``bounds``: start and end of each part in the log. The stored form is the bytes themselves,
        or all frames with any of them. It is cut off at the object's end.
        """
        if frames is not None:
            bounds = [frames.stored_range(start, end) for start, end in bounds]
        sizes = [end - start for start, end in bounds]
        return self._where(entry).get_parts(entry.log_key, bounds[0][0], sizes)

    def fetch_cached(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]]
    ) -> Sequence[bytes]:
        """Return consecutive parts of a log without frames, on the event loop.

        ``bounds`` as in :meth:`fetch_stored`. Raises NotInMemory unless the log is a file in the
        page cache.
        """
        store = self._where(entry)
        if not isinstance(store, DirectoryStore):
            raise NotInMemory
        sizes = [end - start for start, end in bounds]
        return store.get_cached_parts(entry.log_key, bounds[0][0], sizes)

    def decode(
        self, entry: SegmentEntry, stored: Buffer, start: int, end: int, frames: Frames | None
    ) -> bytes:
        """Return the bytes ``start`` to ``end`` of a log from what :meth:`fetch_stored` returned.

        Raises ObjectDamaged if a frame differs from the stored one. Without frames, ``stored`` is
        returned, which may be shorter.
        """
        if frames is None:
            return bytes(stored)
        try:
            return frames.decode(stored, start, end, entry.size_bytes)
        except ValueError as error:
            raise damaged(entry, entry.log_key, self.describe(entry), str(error)) from error

    def fetch_aux(self, entry: SegmentEntry) -> Aux:
        """Return a segment's indexes, snapshots and digests as they were copied.

        Raises ObjectDamaged if they differ from the copied ones or cannot be parsed, and
        SegmentUnreadable.
        """
        return self.parse_aux(entry, self.fetch_aux_bytes(entry))

    def fetch_aux_bytes(self, entry: SegmentEntry) -> bytes:
        """Return a segment's auxiliary object for :meth:`parse_aux`. Raises ObjectDamaged."""
        store = self._where(entry)
        try:
            return store.get(entry.aux_key).data
        except ObjectTooLarge as error:
            raise damaged(entry, entry.aux_key, store.describe(), str(error)) from error

    def parse_aux(self, entry: SegmentEntry, data: bytes) -> Aux:
        """Return the content of a segment's auxiliary object.

        Raises ObjectDamaged, SegmentUnreadable.
        """
        where = self.describe(entry)
        try:
            opened = open_aux(data, entry.key, self.keys)
        except ValueError as error:
            raise damaged(entry, entry.aux_key, where, str(error)) from error
        # Entries of the manifest's first format have no digest.
        digests = entry.digests
        if digests is not None and digest_of(opened.packed, digests.algorithm) != digests.aux:
            raise damaged(entry, entry.aux_key, where, "its digest is not the manifest's")
        # Without a digest the version may be damage.
        if digests is not None:
            check_version(opened.packed, entry.key)
        try:
            aux = unpack_opened(opened, "it")
        except AuxCorrupt as error:
            raise damaged(entry, entry.aux_key, where, str(error)) from error
        # One algorithm for a whole segment: readers take it from the entry.
        if digests is not None and aux.algorithm is not digests.algorithm:
            what = f"its digests are {aux.algorithm}, the manifest's are {digests.algorithm}"
            raise damaged(entry, entry.aux_key, where, what)
        if aux.frames is not None and not aux.frames.fits(entry.size_bytes):
            what = f"its table has {aux.frames.count} frames, not those of the log"
            raise damaged(entry, entry.aux_key, where, what)
        return aux

    def delete(self, entries: Sequence[SegmentEntry]) -> None:
        """Delete both objects of each segment; those of an unfinished copy in every bucket.

        Raises DeletesRefused if some remain and all others are deleted; after another error some
        may be deleted.
        """
        keys: dict[str, list[str]] = {}
        for entry in entries:
            # Without custom metadata the copy was never finished, so its bucket is not recorded.
            unknown = entry.custom_metadata is None
            for name in self._names if unknown else (self._bucket_of(entry),):
                keys.setdefault(name, []).extend((entry.log_key, entry.aux_key))
        _delete_each([(self._buckets[name], there) for name, there in keys.items()])

    def reads_parts(self, entry: SegmentEntry) -> bool:
        """Return whether a part of a segment can be read alone: digests verify it."""
        return entry.digests is not None

    def batch_line(self, entry: SegmentEntry, expected: int | None = None) -> BatchLine:
        """Return the check of a segment's batches. ``expected``: base offset of the first one."""
        return BatchLine(entry, self.describe(entry), expected)

    def describe(self, entry: SegmentEntry) -> str:
        """Return a segment's location for messages: the bucket, or the directory."""
        return self._where(entry).describe()

    def list_topic(self, topic: str, topic_id: uuid.UUID) -> Iterator[ObjectInfo]:
        """Yield the data objects of a topic in all buckets: none once nothing of it is left."""
        for store in self._buckets.values():
            yield from store.list(topic_data_prefix(topic, topic_id))

    def sweep_topic(self, topic: str, topic_id: uuid.UUID, limit: int) -> int:
        """Delete data objects of a deleted topic in every bucket, whether named or not.

        At most ``limit`` of each bucket. Returns how many there were.
        """
        there = []
        for store in self._buckets.values():
            listed = itertools.islice(store.list(topic_data_prefix(topic, topic_id)), limit)
            there.append((store, [info.key for info in listed]))
        # Listed before deleting: a listing that is modified meanwhile may skip keys.
        _delete_each(there)
        return sum(len(keys) for _, keys in there)

    def _choose(self, entry: SegmentEntry) -> str:
        digest = hashlib.sha256(entry.segment_id.bytes).digest()
        return self._names[int.from_bytes(digest[:8]) % len(self._names)]

    def _where(self, entry: SegmentEntry) -> ObjectStore:
        return self._buckets[self._bucket_of(entry)]

    def _bucket_of(self, entry: SegmentEntry) -> str:
        """Return a segment's recorded bucket, or for a new copy the one that its id selects.

        Raises StoreUnavailable if the recorded bucket is no longer configured.
        """
        if entry.custom_metadata is None:
            return self._choose(entry)
        bucket = decode_custom_metadata(entry.custom_metadata).bucket
        # Reading another bucket instead would report the segment as missing.
        if bucket not in self._buckets:
            raise StoreUnavailable(
                f"{entry.key} is in bucket {bucket!r}, which is no longer configured: add it to "
                "the remote storage's buckets again",
                reason=Reason.BUCKET_NOT_CONFIGURED,
                retriable=False,
            )
        return bucket


def _delete_each(there: Sequence[tuple[ObjectStore, Sequence[str]]]) -> None:
    """Delete keys from every store; a store that refuses some does not stop the others."""
    first: DeletesRefused | None = None
    refused: dict[str, str] = {}
    for store, keys in there:
        try:
            if keys:
                store.delete_many(keys)
        except DeletesRefused as error:
            # Continue with the other buckets, and report all refusals together.
            first = first or error
            refused |= error.refused
    if first is not None:
        raise DeletesRefused(first.where, refused, reason=first.reason)


def _hashed(parts: Iterable[bytes], digest: LogDigest) -> Iterator[bytes]:
    for part in parts:
        digest.update(part)
        yield part


def _parts(descriptor: int, size_bytes: int) -> Iterator[bytes]:
    """Yield exactly ``size_bytes`` of an open file.

    A file that is shorter or cannot be read raises ValueError, because it is not the store's fault.
    An upload that ended early would otherwise look like a complete, shorter object.
    """
    position = 0
    while position < size_bytes:
        try:
            # pread leaves the file's position alone, which other readers may share.
            part = os.pread(descriptor, min(_READ_BYTES, size_bytes - position), position)
        except OSError as error:
            raise ValueError(f"the file to be copied cannot be read: {error}") from error
        if not part:
            raise ValueError(f"the file has {position} of the {size_bytes} bytes to be copied")
        yield part
        position += len(part)


def _first_piece(parts: Iterator[bytes]) -> bytes:
    """Take parts until they have a whole piece."""
    first = b""
    for part in parts:
        first += part
        if len(first) >= PIECE_BYTES:
            break
    return first


class StoredSegment(NamedTuple):
    """Custom metadata of a segment.

    ``bucket``: NO_BUCKET in a store without buckets. ``size_bytes``: of both objects.
    ``log_bytes``: of the log's object, None if it is stored byte for byte.
    """

    bucket: str
    size_bytes: int
    log_bytes: int | None = None


def encode_custom_metadata(bucket: str, stored_bytes: int, log_bytes: int | None = None) -> bytes:
    """Return compact JSON of the fields of StoredSegment; a directory has no bucket."""
    fields: dict[str, str | int] = {"b": bucket} if bucket else {}
    fields["n"] = stored_bytes
    if log_bytes is not None:
        fields["l"] = log_bytes
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


@lru_cache(maxsize=1024)
def decode_custom_metadata(data: bytes) -> StoredSegment:
    """Return the content of a segment's custom metadata (KIP-917).

    Remembered, because each read of a segment needs it. Raises StoreUnavailable, not retriable,
    for metadata of another storage manager.
    """
    # Another storage manager's metadata may be any bytes, so every failure means the same.
    try:
        fields = json.loads(data)
        log_bytes = int(fields["l"]) if "l" in fields else None
        return StoredSegment(str(fields.get("b", NO_BUCKET)), int(fields["n"]), log_bytes)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise StoreUnavailable(
            f"custom metadata {data[:64]!r} was written by another storage manager: configure that "
            "one",
            reason=Reason.FOREIGN_CUSTOM_METADATA,
            retriable=False,
        ) from error


def stored_log_bytes(entry: SegmentEntry) -> int:
    """Return the size of a finished segment's log object. Raises StoreUnavailable."""
    if entry.custom_metadata is None:
        return entry.size_bytes
    stored = decode_custom_metadata(entry.custom_metadata)
    return entry.size_bytes if stored.log_bytes is None else stored.log_bytes


def _has_frames(entry: SegmentEntry) -> bool:
    custom = entry.custom_metadata
    return custom is not None and decode_custom_metadata(custom).log_bytes is not None
