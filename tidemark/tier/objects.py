"""The port to an object store: the few operations that the tier needs, and their errors.

What every implementation keeps to:

* ``put`` and its kin are atomic: a reader sees the whole object or none of it, and what was
  acknowledged is durable.
* ``replace`` is compare-and-set on the object's *version*. A version is derived from the body (S3's
  ETag is; the directory does the same on purpose, so that tests meet the same rules), so equal
  bodies have equal versions: whoever uses compare-and-set puts a number that only grows into the
  body (a head's version does).
* A conditional write that raises may still have happened, whatever the error says: clients retry
  inside, and their own success then looks like a conflict. Only reading tells.
* ``delete`` of a missing object succeeds.
* ``ObjectNotFound`` means that the store answered and has no such object. Anything else that keeps
  us from knowing is ``StoreUnavailable``: absence is not evidence unless the store said so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

Version = NewType("Version", str)


class StoreError(Exception):
    """Base of all errors of the tier's storage."""


#: What is read whole is never larger: the largest are auxiliary objects, a few indexes each.
OBJECT_BYTES_MAX = 256 * 1024 * 1024


class ObjectNotFound(StoreError):
    """The store answered: there is no object under this key."""


class ObjectTooLarge(StoreError):
    """An object that is to be read whole has more bytes than anything that is written under its
    key: it was not read."""

    def __init__(self, key: str, where: str, size_bytes: int) -> None:
        super().__init__(
            f"object {key} in {where} has {size_bytes} bytes, at most {OBJECT_BYTES_MAX} are read "
            "as a whole: something else stands in its place"
        )


class PreconditionFailed(StoreError):
    """The object is not (or no longer) in the expected version, as far as the store says."""


class AlreadyExists(StoreError):
    """An object under this key exists already, as far as the store says."""


class StoreUnavailable(StoreError):
    """The store cannot be used now. ``reason`` is CamelCase for a condition; the message says what
    to do; ``retriable`` is False when only a person can help (wrong key, missing bucket)."""

    def __init__(self, message: str, *, reason: str, retriable: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.retriable = retriable


class DeletesRefused(StoreUnavailable):
    """The store refused to delete some objects and deleted the others. ``refused``: the store's
    answer by key of a remaining object."""

    def __init__(self, where: str, refused: Mapping[str, str], *, reason: str = "") -> None:
        key = next(iter(refused))
        super().__init__(
            f"{where}: {len(refused)} objects cannot be deleted, {key} among them: "
            f"{refused[key]}. Remove the policy, lock or legal hold that holds them; the "
            "delete is retried",
            reason=reason or "StoreRefusesDeletes",
            retriable=True,
        )
        self.where = where
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Got:
    """A whole object and the version it was read in."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One line of a listing: key relative to the store's prefix, bytes, time of last change."""

    key: str
    size_bytes: int
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Parts of an object that is not there, since its upload has not ended: in S3 a multipart
    upload, in a directory a temporary file (whose key nobody knows: empty)."""

    key: str
    upload_id: str
    begun_ms: int


class ObjectStore(Protocol):
    """All calls block; callers use threads. Keys are relative, ``/`` separates folders."""

    def get(self, key: str) -> Got:
        """The whole object. Raises ObjectNotFound, ObjectTooLarge."""

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        """Bytes of the range, cut off at the object's end; empty beyond it. Raises
        ObjectNotFound."""

    def put(self, key: str, data: bytes) -> None:
        """Write, whatever stood there."""

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        """Write the parts, one behind the other. What taking a part raises is raised, and nothing
        is written."""

    def create(self, key: str, data: bytes) -> Version:
        """Write only if nothing stands there. Raises AlreadyExists."""

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        """Write only over the expected version. Raises PreconditionFailed."""

    def delete(self, key: str) -> None:
        """Remove; a missing object is fine."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete all keys in as few requests as the store allows. Raises DeletesRefused if some
        remain and all others are deleted; after another error any of them may be deleted."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object in the folder ``prefix`` (empty, or ending in ``/``) and below it."""

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Every upload that has begun and not ended, whoever began it."""

    def abort(self, upload: UnfinishedUpload) -> None:
        """Drop what an upload has left; one that is gone is fine, and one that still runs fails."""

    def describe(self) -> str:
        """Where this store is, for messages; without secrets."""


def check_key(key: str) -> str:
    """``key`` itself, or ValueError where it could leave the store's prefix."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise ValueError(f"{key!r} is not a key: folders and names, separated by single slashes")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix`` itself, or ValueError where it is not empty and not a folder."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is not a folder: end it with a slash")
    if prefix:
        check_key(prefix.rstrip("/"))
    return prefix
