"""Port to an object store: the operations that the tier needs, and their errors.

Guarantees of every implementation:

* ``put`` and the other writes are atomic: a reader sees the whole object or none of it, and an
  acknowledged write is durable.
* ``replace`` is compare-and-set on the object's *version*, an opaque text. S3 and the directory
  derive it from the body, so equal bodies have equal versions. A body that is written by
  compare-and-set therefore contains a number that only grows (a head's version). Google Cloud
  Storage (its generation) and Azure (its ETag) change it with every write, also of an equal body.
* A conditional write that raises may still have happened, whatever the error: clients retry
  internally, and their own success then looks like a conflict. Only reading decides.
* ``delete`` of a missing object succeeds.
* ``ObjectNotFound`` means that the store answered and has no such object. Any other obstacle is
  ``StoreUnavailable``: absence is evidence only if the store reported it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NewType, Protocol

from tidemark.reasons import Reason
from tidemark.records.batch import Buffer

Version = NewType("Version", str)


class StoreError(Exception):
    """Base of all errors of the tier's storage."""


#: Name of the only "bucket" of a directory.
NO_BUCKET = ""

#: Upper bound of whole reads: the largest objects are auxiliary ones, with a few indexes each.
OBJECT_BYTES_MAX = 256 * 1024 * 1024


class ObjectNotFound(StoreError):
    """The store answered: it has no object under this key."""


class ObjectTooLarge(StoreError):
    """An object has more bytes than any that is written under its key: it was not read."""

    def __init__(self, key: str, where: str, size_bytes: int) -> None:
        super().__init__(
            f"object {key} in {where} has {size_bytes} bytes, at most {OBJECT_BYTES_MAX} are read "
            "as a whole: another program has replaced it"
        )


class PreconditionFailed(StoreError):
    """The store reports that the object does not (or no longer) have the expected version."""


class AlreadyExists(StoreError):
    """The store reports that an object exists under this key."""


class StoreUnavailable(StoreError):
    """The store cannot be used now.

    ``reason``: CamelCase for a condition. The message names the remedy. ``retriable`` is False if
    only a person can help (wrong key, missing bucket).
    """

    def __init__(self, message: str, *, reason: str, retriable: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.retriable = retriable


class SegmentUnreadable(StoreUnavailable):
    """This process cannot read a segment that is not known to be damaged."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message, reason=reason, retriable=False)


class NotInMemory(Exception):
    """The data is not certain to be in memory: repeat the read in a thread, which may wait."""


class DeletesRefused(StoreUnavailable):
    """The store refused to delete some objects and deleted the others.

    ``refused``: the store's answer by key of a remaining object.
    """

    def __init__(self, where: str, refused: Mapping[str, str], *, reason: str = "") -> None:
        key = next(iter(refused))
        super().__init__(
            f"{where}: {len(refused)} objects cannot be deleted, {key} among them: "
            f"{refused[key]}. Remove the policy, lock or legal hold that holds them; the "
            "delete is retried",
            reason=reason or Reason.STORE_REFUSES_DELETES,
            retriable=True,
        )
        self.where = where
        self.refused = refused


@dataclass(frozen=True, slots=True)
class VersionedObject:
    """Whole object with the version that was read."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Line of a listing: key relative to the store's prefix, bytes, time of the last change."""

    key: str
    size_bytes: int
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Parts of an object whose upload has not ended.

    In S3 a multipart upload, in a directory a temporary file (whose key is unknown: empty). Other
    clouds have such uploads too, but the client cannot list them: Azure discards them after a week,
    Google Cloud Storage by a lifecycle rule of the bucket.
    """

    key: str
    upload_id: str
    begun_ms: int


class ObjectStore(Protocol):
    """Object store.

    All calls block; callers use threads. Keys are relative, ``/`` separates folders.
    """

    def get(self, key: str) -> VersionedObject:
        """Return the whole object. Raises ObjectNotFound, ObjectTooLarge."""

    def get_range(self, key: str, start: int, end_exclusive: int) -> Buffer:
        """Return the bytes of the range, cut off at the object's end; empty beyond it.

        Buffers of the store's client are not copied. Raises ObjectNotFound.
        """

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[Buffer]:
        """Return consecutive parts of the object from ``start`` on, in one request.

        ``sizes``: their bytes. Parts are cut off at the object's end, and empty beyond it. Each one
        has memory of its own, so that it can be kept without the others. Raises ObjectNotFound.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write, over any existing object."""

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        """Write the parts in sequence.

        An error of the iterator is raised, and nothing is written.
        """

    def create(self, key: str, data: bytes) -> Version:
        """Write only if the key has no object. Raises AlreadyExists."""

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        """Write only over the expected version. Raises PreconditionFailed."""

    def delete(self, key: str) -> None:
        """Delete; a missing object is no error."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete all keys in as few requests as the store allows.

        Raises DeletesRefused if some remain and all others are deleted; after another error any of
        them may be deleted.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object in the folder ``prefix`` (empty, or ending in ``/``) and below it."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the name of each folder in the folder ``prefix`` (as in ``list``), not deeper."""

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield every upload that has begun and not ended, of any writer.

        Yields none where the store cannot list them.
        """

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload.

        A missing one is no error; an upload that still runs fails.
        """

    def describe(self) -> str:
        """Return the store's location for messages, without secrets."""


def cut(data: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
    """Return consecutive parts of ``data`` as :meth:`ObjectStore.get_parts` does, as copies."""
    if len(sizes) == 1:
        return [data]
    view, ends = memoryview(data), accumulate(sizes)
    return [bytes(view[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def check_key(key: str) -> str:
    """Return ``key``, or raise ValueError if it could leave the store's prefix."""
    # Dots, empty parts and backslashes could leave the prefix on some store or file system.
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise ValueError(f"{key!r} is not a key: folders and names, separated by single slashes")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix``, or raise ValueError unless it is empty or a folder."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is not a folder: end it with a slash")
    if prefix:
        check_key(prefix.rstrip("/"))
    return prefix
