"""The object store of the tier, in memory, with everything that may go wrong with a call.

Conditional writes are real compare-and-set. A call may fail and have no effect; fail and have taken
effect (the answer was lost); take effect some time after it failed; or succeed and report a
conflict, as a client that retries inside sees it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.simulation.clockwork import Clockwork
from tidemark.records.batch import Buffer
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager
from tidemark.tier.stores.objects import (
    NO_BUCKET,
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnfinishedUpload,
    Version,
    VersionedObject,
    cut,
)

#: How many versions a head may go back.
FORMER_MAX = 40


def _version(data: bytes) -> Version:
    return Version(hashlib.blake2b(data, digest_size=8).hexdigest())


class ObjectStorage:
    """``changed`` is called with (who, key, bytes before, bytes now) for each change."""

    def __init__(
        self, world: Clockwork, changed: Callable[[str, str, bytes | None, bytes | None], None]
    ) -> None:
        self.world = world
        self.objects: dict[str, bytes] = {}
        self.changed_ms: dict[str, int] = {}
        #: Former bodies of each head, oldest first.
        self.former: dict[str, list[bytes]] = {}
        self._changed = changed
        self.failing = 0.0
        self.away = False
        self.latest_s = 3.0
        #: Objects that a late write left behind: only a sweeper finds them (invariant 10).
        self.late_puts: set[str] = set()

    def quiet(self) -> None:
        self.failing, self.away = 0.0, False

    def set(self, who: str, key: str, data: bytes | None) -> None:
        before = self.objects.get(key)
        if before is not None and key.startswith("heads/"):
            self.former.setdefault(key, []).append(before)
            del self.former[key][:-FORMER_MAX]
        if data is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = data
            self.changed_ms[key] = self.world.wall_ms()
        if before != data:
            self._changed(who, key, before, data)

    def put_back(self, key: str) -> str:
        """Replace a head by an older version of itself, as in a restored bucket. Return its key,
        empty if no head has an older version."""
        chance = self.world.chance
        if not self.former.get(key):
            return ""
        back = chance.randint(1, len(self.former[key]))
        self.objects[key] = self.former[key][-back]
        return f"{key} by {back} versions"

    def tier(self, who: str) -> Tier:
        """The real tier over this storage, as one process sees it."""
        store = SimulatedStore(self, who)
        storage, topics = RemoteStorageManager({NO_BUCKET: store}), TopicCatalog(store)
        manifests = ManifestStore(store, page_entries=4, sleep=lambda _: None)
        return Tier(store, manifests, storage, topics, TierReader(manifests, topics))


def _gone() -> StoreUnavailable:
    return StoreUnavailable("the store does not answer", reason="Simulated", retriable=True)


class SimulatedStore:
    """One process's way to the storage: implements ``ObjectStore``."""

    def __init__(self, storage: ObjectStorage, who: str) -> None:
        self._storage = storage
        self._who = who

    def _trouble(self) -> float:
        """0: all is well; else a number that chooses what goes wrong."""
        storage = self._storage
        if storage.away:
            raise _gone()
        if storage.failing and storage.world.chance.random() < storage.failing:
            return storage.world.chance.random()
        return 0.0

    def _change(self, key: str, data: bytes | None, check: Callable[[], Exception | None]) -> None:
        """A write that may go wrong; ``check`` says what forbids it at the moment it lands."""
        trouble, storage = self._trouble(), self._storage
        if trouble and trouble < 0.35:
            raise _gone()
        if trouble and trouble < 0.55:
            late_s = storage.latest_s * storage.world.chance.random()
            storage.world.after(late_s, self._land, key, data, check)
            raise _gone()
        refused = check()
        if refused is not None:
            raise refused
        storage.set(self._who, key, data)
        if trouble:
            raise _gone() if trouble < 0.8 else self._conflict(key)

    @staticmethod
    def _conflict(key: str) -> Exception:
        return PreconditionFailed(f"{key} is in another version")

    def _land(self, key: str, data: bytes | None, check: Callable[[], Exception | None]) -> None:
        if check() is None:
            if data is not None and key not in self._storage.objects:
                self._storage.late_puts.add(key)
            self._storage.set(self._who, key, data)

    def get(self, key: str) -> VersionedObject:
        if self._trouble():
            raise _gone()
        data = self._storage.objects.get(key)
        if data is None:
            raise ObjectNotFound(f"there is no {key}")
        return VersionedObject(data, _version(data))

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        return self.get(key).data[start:end_exclusive]

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[Buffer]:
        return cut(self.get_range(key, start, start + sum(sizes)), sizes)

    def put(self, key: str, data: bytes) -> None:
        try:
            self._change(key, bytes(data), lambda: None)
        except PreconditionFailed:
            return  # an unconditional write knows no conflict

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        self.put(key, b"".join(parts))

    def create(self, key: str, data: bytes) -> Version:
        def check() -> Exception | None:
            exists = key in self._storage.objects
            return AlreadyExists(f"{key} exists") if exists else None

        try:
            self._change(key, bytes(data), check)
        except PreconditionFailed as error:
            raise AlreadyExists(str(error)) from error
        return _version(bytes(data))

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        def check() -> Exception | None:
            held = self._storage.objects.get(key)
            same = held is not None and _version(held) == expected
            return None if same else self._conflict(key)

        self._change(key, bytes(data), check)
        return _version(bytes(data))

    def delete(self, key: str) -> None:
        try:
            self._change(key, None, lambda: None)
        except PreconditionFailed:
            return

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if self._trouble():
            raise _gone()
        for key in sorted(self._storage.objects):
            if key.startswith(prefix):
                size = len(self._storage.objects[key])
                yield ObjectInfo(key, size, self._storage.changed_ms[key])

    def folders(self, prefix: str) -> Iterator[str]:
        paths = [info.key.removeprefix(prefix) for info in self.list(prefix)]
        yield from sorted({path.partition("/")[0] for path in paths if "/" in path})

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        return iter(())  # an upload is one call here

    def abort(self, upload: UnfinishedUpload) -> None:
        raise AssertionError(f"there is no {upload}")

    def describe(self) -> str:
        return "the simulated store"


def keys(storage: ObjectStorage, suffix: str) -> list[str]:
    """Keys by their ending."""
    return [key for key in storage.objects if key.endswith(suffix)]
