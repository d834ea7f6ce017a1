"""The storage manager: segments in and out of the object store (Kafka's RemoteStorageManager).

Two objects per segment, ``.log`` and ``.aux``. Copying may be repeated and overwrites; deleting what
is not there succeeds; what was copied can be read when ``copy_segment`` returns.

KIP-917: ``copy_segment`` returns custom metadata that is opaque to everybody else, here compact
JSON: ``{"b": bucket, "n": stored bytes, indexes included}`` (no ``b`` for a directory). With several
buckets a hash of the segment id chooses one. Where a segment lies afterwards is what its custom
metadata says, whatever the configuration has become; a copy that was never finished has none, so its
objects are deleted in every configured bucket. Whether the metadata is too large is the caller's
question.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidemark.tier.auxiliary import Aux, pack, unpack
from tidemark.tier.layout import topic_data_prefix
from tidemark.tier.objects import ObjectInfo, ObjectStore, StoreUnavailable
from tidemark.tier.segment import SegmentEntry

#: The one "bucket" of a directory.
NO_BUCKET = ""


@dataclass(frozen=True, slots=True)
class SegmentData:
    """What is copied: a closed, fsynced log file of ``size_bytes``, and what belongs to it."""

    log: Path
    size_bytes: int
    aux: Aux


class RemoteStorageManager(Protocol):
    """Calls block. Errors: ObjectNotFound where a segment's object is gone, StoreUnavailable,
    AuxCorrupt."""

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> bytes | None:
        """Upload both objects; returns the custom metadata to be recorded."""

    def fetch(self, entry: SegmentEntry, start: int, end_exclusive: int) -> bytes:
        """Bytes of the segment's log from position ``start``, cut off at its end."""

    def fetch_aux(self, entry: SegmentEntry) -> Aux:
        """Indexes, epochs, producer snapshot, aborted ranges."""

    def delete(self, entry: SegmentEntry) -> None:
        """Remove both objects."""


class BucketStorageManager:
    """Storage manager over one store per bucket, in the configured order."""

    def __init__(self, buckets: Mapping[str, ObjectStore]) -> None:
        if not buckets:
            raise ValueError("a storage manager needs at least one bucket")
        self._buckets = dict(buckets)
        self._names = tuple(buckets)

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> bytes | None:
        """Upload to the bucket that the segment id chooses."""
        bucket = self._choose(entry)
        store = self._buckets[bucket]
        aux = pack(data.aux)
        store.put(entry.aux_key, aux)
        stored = store.put_file(entry.log_key, data.log, data.size_bytes) + len(aux)
        return encode_custom_metadata(bucket, stored)

    def fetch(self, entry: SegmentEntry, start: int, end_exclusive: int) -> bytes:
        """Read from where the segment lies."""
        end = min(end_exclusive, entry.size_bytes)
        return self._where(entry).get_range(entry.log_key, start, end) if start < end else b""

    def fetch_aux(self, entry: SegmentEntry) -> Aux:
        """Read and check the packed object."""
        store = self._where(entry)
        return unpack(store.get(entry.aux_key).data, f"{entry.aux_key} in {store.describe()}")

    def delete(self, entry: SegmentEntry) -> None:
        """Delete where the segment lies; everywhere, for a copy that was never finished."""
        unknown = entry.custom_metadata is None
        for store in self._buckets.values() if unknown else (self._where(entry),):
            store.delete(entry.log_key)
            store.delete(entry.aux_key)

    def list_topic(self, topic: str, topic_id: uuid.UUID) -> Iterator[ObjectInfo]:
        """Data objects of a topic in all buckets: none when nothing of it is left."""
        for store in self._buckets.values():
            yield from store.list(topic_data_prefix(topic, topic_id))

    def _choose(self, entry: SegmentEntry) -> str:
        digest = hashlib.sha256(entry.segment_id.bytes).digest()
        return self._names[int.from_bytes(digest[:8]) % len(self._names)]

    def _where(self, entry: SegmentEntry) -> ObjectStore:
        if entry.custom_metadata is None:
            return self._buckets[self._choose(entry)]
        bucket, _ = decode_custom_metadata(entry.custom_metadata)
        store = self._buckets.get(bucket)
        if store is None:
            raise StoreUnavailable(
                f"{entry.key} lies in bucket {bucket!r}, which is not configured any more: add it to the "
                "remote storage's buckets again",
                reason="BucketNotConfigured",
                retriable=False,
            )
        return store


def encode_custom_metadata(bucket: str, stored_bytes: int) -> bytes:
    """Compact JSON; a directory has no bucket."""
    fields: dict[str, str | int] = {"b": bucket} if bucket else {}
    fields["n"] = stored_bytes
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def decode_custom_metadata(data: bytes) -> tuple[str, int]:
    """(bucket, stored bytes). Raises StoreUnavailable for what this manager did not write."""
    try:
        fields = json.loads(data)
        return str(fields.get("b", NO_BUCKET)), int(fields["n"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreUnavailable(
            f"custom metadata {data[:64]!r} was written by another storage manager: configure that one",
            reason="ForeignCustomMetadata",
            retriable=False,
        ) from error
