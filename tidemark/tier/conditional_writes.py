"""Probe that tells whether a store honours conditional writes.

Claims, commits and leases rely on compare-and-set. Many S3-compatible stores accept ``If-Match``
and ``If-None-Match`` and ignore them, and so do emulators of other clouds. A delayed write then
overwrites a newer one, and the head loses the commits in between. Only a probe, which writes an
object of its own, detects that. It is repeated periodically, because the store's version or a proxy
in front of it may change.

Other stores check the condition and write in two steps, so writers at the same moment overwrite
each other. Some writers of the probe therefore race. A store may pass by chance: of 80 probes of a
gateway with this fault 6 passed. The operator, each broker and each later probe race again.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tidemark.reasons import Reason
from tidemark.tier.metadata.layout import PROBES_PREFIX
from tidemark.tier.stores.objects import (
    AlreadyExists,
    DeletesRefused,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)

#: Writers that race for one version and for one missing object, and how often they do. Larger
#: bodies take longer between the check and the write, so more of such stores are found.
RACERS, _RACES, _RACED_BYTES = 4, 4, 64 << 10
#: Age after which the object of an interrupted probe is removed, and how many are per probe.
_LEFT_MS, _LEFT_AT_ONCE = 3_600_000, 100


class NoConditionalWrites(StoreUnavailable):
    """The store accepts conditional writes and ignores the condition."""

    def __init__(self, where: str, header: str, what: str) -> None:
        super().__init__(
            f"{where} ignores {header}: {what}. Two brokers would overwrite each other's commits. "
            "Use a store with conditional writes, or a version or setting of this one that has "
            "them; nothing is copied, expired or deleted meanwhile",
            reason=Reason.STORE_WITHOUT_CONDITIONAL_WRITES,
            retriable=False,
        )


def check_conditional_writes(store: ObjectStore, *, now_ms: int) -> None:
    """Create, overwrite and delete an object with a unique key. Blocks.

    Raises NoConditionalWrites, and StoreUnavailable if the store gives no answer."""
    _remove_left(store, now_ms)
    key = f"{PROBES_PREFIX}{uuid.uuid4().hex}"
    # A delete that the store refuses (an object lock) says nothing about conditional writes. A
    # later probe removes the objects.
    try:
        _probe(store, key)
    finally:
        with contextlib.suppress(StoreUnavailable):
            store.delete_many([key, _missing(key)])
    raced = [f"{key}-raced-{number}" for number in range(_RACES)]
    try:
        for name in raced:
            _race(store, name)
    finally:
        with contextlib.suppress(StoreUnavailable):
            store.delete_many(raced)


def _probe(store: ObjectStore, key: str) -> None:
    where = store.describe()
    _creates(store, key, b"1")  # a lost answer looks like a conflict: the stored data decides
    first = store.get(key)
    # A write that expects a version must not create a missing object. The version is one of the
    # store, because each store has its own form of versions.
    if _replaces(store, _missing(key), b"0", first.version):
        raise NoConditionalWrites(where, "If-Match", "it created an object that must exist before")
    if _creates(store, key, b"2") or store.get(key).data != b"1":
        raise NoConditionalWrites(where, "If-None-Match", "it overwrote an object that exists")
    if not _replaces(store, key, b"3", first.version):
        raise NoConditionalWrites(where, "If-Match", "it refuses the version that it has")
    if _replaces(store, key, b"4", first.version) or store.get(key).data != b"3":
        raise NoConditionalWrites(where, "If-Match", "it overwrote a version that was not expected")


def _race(store: ObjectStore, key: str) -> None:
    """Let several writers create one object, then replace one version of it: one may succeed."""
    bodies = [f"{number}".encode() * _RACED_BYTES for number in range(RACERS)]
    created = _won_at_once([partial(store.create, key, body) for body in bodies])
    if created > 1:
        raise _overwritten(store, "If-None-Match", f"{created} of {RACERS} created one object")
    try:
        version = store.get(key).version
    except ObjectNotFound:
        return  # all attempts failed, as a store may refuse many writes of one object
    # Bodies differ from the first one, so no version returns.
    replaced = _won_at_once(
        [partial(store.replace, key, b"new" + body, version) for body in bodies]
    )
    if replaced > 1:
        raise _overwritten(store, "If-Match", f"{replaced} of {RACERS} replaced one version")


def _won_at_once(writes: Sequence[Callable[[], Version]]) -> int:
    """Run conditional writes at the same moment; return how many succeed."""
    start = threading.Event()

    def attempt(write: Callable[[], Version]) -> bool:
        start.wait()
        try:
            write()
        except (AlreadyExists, PreconditionFailed, ObjectNotFound, StoreUnavailable):
            return False  # a failure proves nothing, not even that nothing was written
        return True

    with ThreadPoolExecutor(len(writes), thread_name_prefix="probe") as threads:
        try:
            attempts = [threads.submit(attempt, write) for write in writes]
        finally:
            # Also if a thread cannot be started, because the others would wait for ever.
            start.set()
        return sum(future.result() for future in attempts)


def _overwritten(store: ObjectStore, header: str, what: str) -> NoConditionalWrites:
    return NoConditionalWrites(store.describe(), f"{header} of concurrent writers", what)


def _missing(key: str) -> str:
    """Return the key of an object that the probe does not create."""
    return f"{key}-missing"


def _creates(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        store.create(key, data)
    except AlreadyExists:
        return False
    return True


def _replaces(store: ObjectStore, key: str, data: bytes, expected: Version) -> bool:
    """Return whether the object has the data afterwards; an error may be that of a retry."""
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
