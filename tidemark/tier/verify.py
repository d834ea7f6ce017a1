"""A segment in the store, read whole and held against everything that is known of it.

Readers check what they serve; this is for who wants to know before anybody reads: sizes as listed,
the auxiliary object, the digest of every piece of the log, the CRC-32C and the leader epoch of
every batch, and offsets that run on from the segment's start to its end. Memory is a piece of a few
MiB.
"""

from collections.abc import Iterator

from tidemark.records.batch import BatchHeader, CorruptBatch, iter_headers
from tidemark.tier.auxiliary import Aux
from tidemark.tier.integrity import BatchLine, CheckedStream, ObjectDamaged, damaged
from tidemark.tier.remote_storage_manager import RemoteStorageManager, decode_custom_metadata
from tidemark.tier.segment import SegmentEntry

PIECE_BYTES = 8 * 1024 * 1024


def verify_segment(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int] | None = None
) -> None:
    """Read all of it. ``listed_bytes``: how large a listing says that ``.log`` and ``.aux`` are.

    Raises ObjectDamaged with what is wrong, ObjectNotFound where an object is gone,
    StoreUnavailable where nobody can say."""
    if listed_bytes is not None:
        _check_sizes(segments, entry, listed_bytes)
    aux = segments.fetch_aux(entry)
    store = segments.describe(entry)
    line = BatchLine(entry, store)
    for position, data, headers in whole_batches(segments, entry, aux):
        for at, header in headers:
            line.follow(header.base_offset, header.last_offset, position + at, header.size_bytes)
            # Before the part that the segment answers for, its leader epochs may be forgotten.
            if header.last_offset >= entry.from_offset:
                line.check_batch(data, at)
    line.finish()


def whole_batches(
    segments: RemoteStorageManager, entry: SegmentEntry, aux: Aux | None
) -> Iterator[tuple[int, bytes, list[tuple[int, BatchHeader]]]]:
    """(position, bytes, headers in them) of whole batches, checked as far as digests go; a batch
    that a piece cuts is finished by the next. ``aux``: None where the entry has no digests.

    Raises ObjectDamaged, ObjectNotFound, StoreUnavailable."""
    store = segments.describe(entry)
    stream = CheckedStream(entry, () if aux is None else aux.pieces, store)
    position, held = 0, b""
    for begin in range(0, entry.size_bytes, PIECE_BYTES):
        held += stream.feed(segments.fetch(entry, begin, begin + PIECE_BYTES))
        try:
            headers = list(iter_headers(held))
        except CorruptBatch as error:
            raise damaged(entry, entry.log_key, store, str(error)) from error
        whole = headers[-1][0] + headers[-1][1].size_bytes if headers else 0
        yield position, held, headers
        position, held = position + whole, held[whole:]
    stream.finish()


def _check_sizes(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int]
) -> None:
    log_bytes, aux_bytes = listed_bytes
    if log_bytes != entry.size_bytes:
        what = f"it has {log_bytes} bytes, the manifest says {entry.size_bytes}"
        raise _damaged(segments, entry, entry.log_key, what)
    if entry.custom_metadata is None:
        return
    _, stored_bytes = decode_custom_metadata(entry.custom_metadata)
    if log_bytes + aux_bytes != stored_bytes:
        what = f"it has {aux_bytes} bytes, its copier wrote {stored_bytes - log_bytes}"
        raise _damaged(segments, entry, entry.aux_key, what)


def _damaged(
    segments: RemoteStorageManager, entry: SegmentEntry, key: str, what: str
) -> ObjectDamaged:
    return damaged(entry, key, segments.describe(entry), what)
