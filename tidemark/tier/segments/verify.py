"""Verification of a complete segment in the store.

Readers verify what they serve. This module verifies a segment before it is read: its sizes as
listed, the auxiliary object, the digest of each piece, and each batch.
"""

from collections.abc import Iterator

from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.integrity import BatchLine, ObjectDamaged, damaged, verified_batches
from tidemark.tier.segments.remote_storage_manager import (
    RemoteStorageManager,
    decode_custom_metadata,
)

PIECE_BYTES = 8 * 1024 * 1024


def verify_segment(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int] | None = None
) -> None:
    """Read a whole segment and verify it: sizes, indexes, digests and every batch.

    ``listed_bytes``: sizes of ``.log`` and ``.aux`` in a listing, None to skip this check. Raises
    ObjectDamaged with the cause, ObjectNotFound if an object is missing, StoreUnavailable if the
    store does not answer.
    """
    # Cheapest checks first: sizes, then the small auxiliary object, then the log.
    if listed_bytes is not None:
        _check_sizes(segments, entry, listed_bytes)
    aux = segments.fetch_aux(entry)
    store = segments.describe(entry)
    line = BatchLine(entry, store)
    parts = _parts(segments, entry)
    for position, data, headers in verified_batches(entry, parts, aux.pieces, store):
        for at, header in headers:
            line.follow(header.base_offset, header.last_offset, position + at, header.size_bytes)
            # Offsets below this one are served from the preceding segment. Their leader epochs may
            # be truncated from the entry.
            if header.last_offset >= entry.from_offset:
                line.check_batch(data, at)
    line.finish()


def _parts(segments: RemoteStorageManager, entry: SegmentEntry) -> Iterator[bytes]:
    for begin in range(0, entry.size_bytes, PIECE_BYTES):
        yield segments.fetch(entry, begin, begin + PIECE_BYTES)


def _check_sizes(
    segments: RemoteStorageManager, entry: SegmentEntry, listed_bytes: tuple[int, int]
) -> None:
    """Compare the listed sizes of both objects with the manifest's. Raises ObjectDamaged."""
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
