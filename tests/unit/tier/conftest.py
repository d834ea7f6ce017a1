"""Fixtures for unit tests of the tier: a topic, its segments, and a store whose n-th call fails."""

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tidemark.records.batch import Buffer
from tidemark.tier.metadata.head import Claim, Head, new_head
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    UnfinishedUpload,
    Version,
    VersionedObject,
    cut,
)
from tidemark.tiering import Tiering, TieringState

TOPIC = "flights"
TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
CLUSTER = "cluster-1"
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class TierPartition:
    """Partition that the tests work on, and factories of its heads and segments."""

    topic: str = TOPIC
    topic_id: uuid.UUID = TOPIC_ID
    partition: int = 3
    cluster_id: str = CLUSTER
    #: Segment ids are the same in every run, because they determine the bucket of a segment.
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    def head(self, leader_epoch: int = 1, tiered_epoch: int = 0, log_start: int = 0) -> Head:
        return new_head(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            cluster_id=self.cluster_id,
            leader_epoch=leader_epoch,
            tiering=Tiering(TieringState.ENABLED, tiered_epoch),
            broker_id=1,
            log_start_offset=log_start,
        )

    def segment(
        self,
        start: int,
        end: int,
        by: Claim = Claim(1, 0),  # noqa: B008 - immutable
        epochs: tuple[tuple[int, int], ...] | None = None,
        size_bytes: int = 100,
        max_timestamp_ms: int | None = None,
    ) -> SegmentEntry:
        return new_segment(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            # Derived from a counter, so each run has the same sequence of ids.
            segment_id=uuid.uuid5(self.topic_id, str(next(self._numbers))),
            start_offset=start,
            end_offset_inclusive=end,
            max_timestamp_ms=end * 10 if max_timestamp_ms is None else max_timestamp_ms,
            size_bytes=size_bytes,
            broker_id=1,
            event_time_ms=5,
            leader_epochs=((1, start),) if epochs is None else epochs,
            leader_epoch=by.leader_epoch,
            tiered_epoch=by.tiered_epoch,
        )


class MemoryStore:
    """Object store in a dict, for tests that make thousands of calls (a directory store fsyncs
    each)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: list[UnfinishedUpload] = []

    def get(self, key: str) -> VersionedObject:
        if key not in self.objects:
            raise ObjectNotFound(f"no object {key}")
        return VersionedObject(self.objects[key], _version(self.objects[key]))

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        return self.get(key).data[start:end_exclusive]

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[Buffer]:
        return cut(self.get_range(key, start, start + sum(sizes)), sizes)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        self.objects[key] = b"".join(parts)

    def create(self, key: str, data: bytes) -> Version:
        if key in self.objects:
            raise AlreadyExists(f"{key} exists already")
        self.put(key, data)
        return _version(data)

    # Compare-and-set by content: the version is a hash, so equal bodies have equal versions.
    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        if key not in self.objects or _version(self.objects[key]) != expected:
            raise PreconditionFailed(f"{key} was changed by another writer")
        self.put(key, data)
        return _version(data)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(key, len(self.objects[key]), 0)

    def folders(self, prefix: str) -> Iterator[str]:
        paths = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        yield from sorted({path.partition("/")[0] for path in paths if "/" in path})

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        yield from tuple(self.uploads)

    def abort(self, upload: UnfinishedUpload) -> None:
        self.uploads.remove(upload)

    def describe(self) -> str:
        return "memory"


def _version(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())


class FaultyStore:
    """Store whose calls can fail, before or after they take effect."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._calls = itertools.count(1)
        self._fails: Callable[[int, str, str], str | None] = lambda _n, _op, _key: None
        self.trace: list[tuple[str, str]] = []

    def fail(self, decide: Callable[[int, str, str], str | None]) -> None:
        """Let ``decide(n, operation, key)`` return "before", "after" or None for the n-th call from
        now on."""
        # Numbers restart here, so that a test can count from its own first call.
        self._calls = itertools.count(1)
        self._fails = decide
        self.trace = []

    def _call(self, operation: str, key: str, call: Callable[[], _Result]) -> _Result:
        self.trace.append((operation, key))
        when = self._fails(next(self._calls), operation, key)
        # "after" is the harder case: the call took effect, but its caller received an error.
        if when == "before":
            raise _error(operation)
        result = call()
        if when == "after":
            raise _error(operation)
        return result

    def get(self, key: str) -> VersionedObject:
        return self._call("get", key, lambda: self._store.get(key))

    def get_range(self, key: str, start: int, end_exclusive: int) -> Buffer:
        return self._call(
            "get_range", key, lambda: self._store.get_range(key, start, end_exclusive)
        )

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[Buffer]:
        return cut(self.get_range(key, start, start + sum(sizes)), sizes)

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, lambda: self._store.put(key, data))

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        self._call("put_stream", key, lambda: self._store.put_stream(key, parts))

    def create(self, key: str, data: bytes) -> Version:
        return self._call("create", key, lambda: self._store.create(key, data))

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        return self._call("replace", key, lambda: self._store.replace(key, data, expected))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._store.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._call("delete_many", keys[0], lambda: self._store.delete_many(keys))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call("list", prefix, lambda: self._store.list(prefix))

    def describe(self) -> str:
        return self._store.describe()


def _error(operation: str) -> StoreUnavailable:
    return StoreUnavailable(f"{operation} failed", reason="StoreUnreachable", retriable=True)


@pytest.fixture
def place() -> TierPartition:
    return TierPartition()


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def faulty(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory)
