"""Probe of what a store does with conditional writes.

Claims, commits and leases rely on compare-and-set. Many look-alikes of S3 take ``If-Match`` and
``If-None-Match`` and ignore them: a write that was held up then lands over a newer one, and a head
loses what was committed meanwhile. Nothing shows that but a probe, which writes an object of its
own. It is repeated now and then, since a proxy or another version may come between.
"""

import contextlib
import uuid

from tidemark.tier.layout import PROBES_PREFIX
from tidemark.tier.objects import (
    AlreadyExists,
    DeletesRefused,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)

#: Probes of those that died meanwhile are removed after so long, so many at once.
_LEFT_MS, _LEFT_AT_ONCE = 3_600_000, 100


class NoConditionalWrites(StoreUnavailable):
    """The store takes conditional writes and does not keep the condition."""

    def __init__(self, where: str, header: str, what: str) -> None:
        super().__init__(
            f"{where} ignores {header}: {what}. Two brokers would overwrite each other's commits. "
            "Use a store with conditional writes, or a version or setting of this one that has "
            "them; nothing is copied, expired or deleted meanwhile",
            reason="StoreWithoutConditionalWrites",
            retriable=False,
        )


def check_conditional_writes(store: ObjectStore, *, now_ms: int) -> None:
    """Write, overwrite and delete an object that nobody else has. Blocks. Raises
    NoConditionalWrites, and StoreUnavailable where the store does not say."""
    _remove_left(store, now_ms)
    key = f"{PROBES_PREFIX}{uuid.uuid4().hex}"
    try:
        _probe(store, key)
    finally:
        # What cannot be deleted now is left to a later probe: a lock says nothing of conditions.
        with contextlib.suppress(StoreUnavailable):
            store.delete(key)


def _probe(store: ObjectStore, key: str) -> None:
    where, never = store.describe(), Version('"00000000000000000000000000000000"')
    # Over nothing: a write that expects a version must not create the object.
    if _replaces(store, key, b"0", never):
        raise NoConditionalWrites(where, "If-Match", "it created an object that must exist before")
    _creates(store, key, b"1")  # a lost answer looks like a conflict: what stands there counts
    first = store.get(key)
    if _creates(store, key, b"2") or store.get(key).data != b"1":
        raise NoConditionalWrites(where, "If-None-Match", "it overwrote an object that exists")
    if not _replaces(store, key, b"3", first.version):
        raise NoConditionalWrites(where, "If-Match", "it refuses the version that it has")
    if _replaces(store, key, b"4", first.version) or store.get(key).data != b"3":
        raise NoConditionalWrites(where, "If-Match", "it overwrote a version that was not expected")


def _creates(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        store.create(key, data)
    except AlreadyExists:
        return False
    return True


def _replaces(store: ObjectStore, key: str, data: bytes, expected: Version) -> bool:
    """Whether the data stands there afterwards: an error may be that of a repeated request."""
    try:
        store.replace(key, data, expected)
    except (PreconditionFailed, ObjectNotFound):
        try:
            return store.get(key).data == data
        except ObjectNotFound:
            return False
    return True


def _remove_left(store: ObjectStore, now_ms: int) -> None:
    left = [
        info.key
        for info, _ in zip(store.list(PROBES_PREFIX), range(_LEFT_AT_ONCE), strict=False)
        if info.last_modified_ms + _LEFT_MS < now_ms
    ]
    if left:
        with contextlib.suppress(DeletesRefused):
            store.delete_many(left)
