"""Loading and committing of manifests: the compare-and-set loop around the pure transitions.

A commit that raises may have happened (see ``objects``). After any error of a conditional write the
head is therefore read: our commit id there means success. Otherwise the transition is applied to
the head that was read, which also shows whether a newer claim has fenced this leader. All attempts
of one commit carry the same commit id, and at most one of them can land: two on the same base
exclude each other, and a head that has advanced excludes the earlier base for ever, because its
version only grows.

Where even reading fails the outcome is unknown and StoreUnavailable is raised. The caller loads the
head again later and repeats the transition; all of them allow that. An error is never a reason to
delete anything.
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

from tidemark.backoff import Backoff
from tidemark.ids import id_text
from tidemark.lru import Lru
from tidemark.reasons import Reason
from tidemark.tier.metadata.cache import ByteCache
from tidemark.tier.metadata.codec import (
    ManifestCorrupt,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)
from tidemark.tier.metadata.head import (
    PAGE_ENTRIES,
    Head,
    HeadPosition,
    ManifestError,
    ManifestPage,
)
from tidemark.tier.metadata.layout import (
    head_key,
    heads_prefix,
    page_key,
    page_name,
    partition_of_head,
)
from tidemark.tier.metadata.transitions import seal
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    ObjectTooLarge,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    Version,
)

logger = logging.getLogger(__name__)

ATTEMPTS = 6
#: Memory for sealed pages, of all partitions together: some 50,000 entries.
PAGE_CACHE_BYTES = 64 << 20
_ENTRY_BYTES, _EPOCH_BYTES = 1200, 130
#: Partitions whose last seen position is remembered, about 200 bytes each.
_POSITIONS_MAX = 100_000
_RETRY = Backoff(first_s=0.05, most_s=1.0)

Transition = Callable[[Head], Head]


class HeadNotFound(ManifestError):
    """The store answered that there is no head.

    A caller that knows that one was created must treat this as "unavailable", never as "empty".
    """


class PageNotFound(ManifestError):
    """A page that a head refers to does not exist: read the head again, it may have dropped the
    page.
    """


class HeadWentBack(ManifestError):
    """The head is older than one seen before: it was replaced by an earlier version of itself.

    ``known``: the position that was seen. ``found``: the head in the store now, None for none."""

    def __init__(self, message: str, known: HeadPosition, found: "LoadedHead | None") -> None:
        super().__init__(message)
        self.known = known
        self.found = found


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head and the object version it was read or written in."""

    head: Head
    version: Version


class PageCache:
    """Sealed pages of one partition by name, loaded on demand into ``kept``, which all partitions
    share.

    Pages never change, so a cached one stays valid. Thread-safe.
    """

    def __init__(
        self,
        store: ObjectStore,
        kept: ByteCache[str, ManifestPage],
        topic_id: uuid.UUID,
        partition: int,
        *,
        loads: bool = True,
    ) -> None:
        self._store, self._kept, self._loads = store, kept, loads
        self._topic_id, self._partition = topic_id, partition

    def without_loads(self) -> "PageCache":
        """Return the same pages for the event loop. One that is not cached raises NotInMemory."""
        return PageCache(self._store, self._kept, self._topic_id, self._partition, loads=False)

    def __getitem__(self, name: str, /) -> ManifestPage:
        """Return the page; blocks on the store for one that is not cached. Raises PageNotFound."""
        key = page_key(self._topic_id, self._partition, name)
        if not self._loads:
            return self._kept.get_cached(key)
        return self._kept.get(key, lambda: self._load(key))

    def _load(self, key: str) -> ManifestPage:
        """Read one sealed page from the store.

        Raises PageNotFound (the caller's head may be outdated), ManifestCorrupt, StoreUnavailable.
        """
        try:
            data = self._store.get(key).data
        except ObjectNotFound as error:
            raise PageNotFound(
                f"page {key} is not in {self._store.describe()}; if the head still refers to it, "
                "the tier is damaged"
            ) from error
        except ObjectTooLarge as error:
            raise ManifestCorrupt(str(error)) from error
        page = decode_page(data, f"{key} in {self._store.describe()}")
        # A page that was copied to another key would serve another partition's offsets.
        own = page_key(page.topic_id, page.partition, page.name)
        if own != key:
            raise ManifestCorrupt(_misplaced(f"{key} in {self._store.describe()}", page.name))
        return page


class ManifestStore:
    """The manifests of one store. All calls block.

    ``sleep`` takes seconds (back-off between attempts). ``page_entries``: entries of a sealed page.
    ``page_cache_bytes``: memory limit for the pages of all partitions together.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        page_entries: int = PAGE_ENTRIES,
        page_cache_bytes: int = PAGE_CACHE_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open the manifests of a store. Nothing is read yet; see the class for parameters."""
        self._store = store
        self._page_entries = page_entries
        self._sleep = sleep
        self._kept_pages: ByteCache[str, ManifestPage] = ByteCache(page_cache_bytes, _memory_of)
        #: Newest position of each head that this object has read or written.
        self._positions: Lru[tuple[uuid.UUID, int], HeadPosition] = Lru(_POSITIONS_MAX)
        self._lock = Lock()

    def load(
        self, topic_id: uuid.UUID, partition: int, known: HeadPosition | None = None
    ) -> LoadedHead:
        """Load the present head, and check that it is not older than one that was seen before.

        ``known``: a position (version and commit id) that the caller has recorded, None for none.
        Raises HeadNotFound, ManifestCorrupt, StoreUnavailable, and HeadWentBack if the head is
        older than ``known`` or than one that this object has read or written before.
        """
        # Taken before the read: a slow read must not be compared with another thread's later
        # commit.
        known = self._latest(topic_id, partition, known)
        loaded = self.load_any(topic_id, partition)
        # A store restored from a backup would silently lose segments that were copied since.
        if known is not None and loaded.head.position.is_behind(known):
            raise HeadWentBack(_went_back(loaded.head, known, self._store), known, loaded)
        self._remember(loaded.head)
        return loaded

    def load_any(self, topic_id: uuid.UUID, partition: int) -> LoadedHead:
        """Load the present head, however old it is, for repairs and for the deletion of a topic.

        Unlike ``load`` it does not compare the head with earlier ones. Raises HeadNotFound,
        ManifestCorrupt, StoreUnavailable.
        """
        # Absence is an error here: a caller that may create the head uses ``create``.
        key = head_key(topic_id, partition)
        try:
            got = self._store.get(key)
        except ObjectNotFound as error:
            raise HeadNotFound(
                f"there is no manifest {key} in {self._store.describe()}; if the partition was "
                "tiered there before, check endpoint, bucket and prefix"
            ) from error
        except ObjectTooLarge as error:
            raise ManifestCorrupt(str(error)) from error
        where = f"{key} in {self._store.describe()}"
        head = decode_head(got.data, where)
        # A head that was copied to another key would assign its records to another partition.
        if (head.topic_id, head.partition) != (topic_id, partition):
            raise ManifestCorrupt(_misplaced(where, f"{head.name} (id {id_text(head.topic_id)})"))
        return LoadedHead(head, got.version)

    def _latest(
        self, topic_id: uuid.UUID, partition: int, known: HeadPosition | None
    ) -> HeadPosition | None:
        """Return the later of ``known`` and the position that this object saw last."""
        with self._lock:
            seen = self._positions.get((topic_id, partition))
        if seen is None or (known is not None and known.version > seen.version):
            return known
        return seen

    def _remember(self, head: Head) -> None:
        """Remember the head's position unless a later one is known."""
        key = (head.topic_id, head.partition)
        with self._lock:
            seen = self._positions.get(key)
            if seen is None or head.version > seen.version:
                self._positions.put(key, head.position)
                self._positions.evict()

    def partitions(self, topic_id: uuid.UUID) -> tuple[int, ...]:
        """Return the partitions of a topic that have a head, ascending.

        Other objects in their folder are ignored.
        """
        found = []
        for info in self._store.list(heads_prefix(topic_id)):
            with contextlib.suppress(ValueError):
                partition = partition_of_head(info.key)
                if partition >= 0 and head_key(topic_id, partition) == info.key:
                    found.append(partition)
        return tuple(sorted(found))

    def pages(self, topic_id: uuid.UUID, partition: int) -> PageCache:
        """Return a partition's pages; they share the memory limit with all others of this store."""
        return PageCache(self._store, self._kept_pages, topic_id, partition)

    @property
    def page_cache_bytes(self) -> int:
        """Approximate memory of the cached pages, in bytes."""
        return self._kept_pages.size_bytes

    def create(self, head: Head) -> LoadedHead:
        """Create a partition's head (see ``head.new_head``), or return the existing one.

        Two leaders may create it at the same time. It does not matter which one succeeds, because
        the caller claims the head in any case. Raises StoreUnavailable after the last attempt.
        """
        first = replace(head, version=1, commit_id=uuid.uuid4().hex)
        key, data = head_key(head.topic_id, head.partition), encode_head(first)
        # Create fails if the object exists, so at most one first head is ever written.
        for attempt in range(ATTEMPTS):
            try:
                created = LoadedHead(first, self._store.create(key, data))
            # The create may have landed although its answer was lost.
            except (AlreadyExists, StoreUnavailable) as error:
                found = self._load_if_there(head)
                if found is not None:
                    return found
                _give_up_if_last(attempt, error)
            else:
                self._remember(first)
                return created
            self._sleep(_RETRY.pause_s(attempt + 1))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def commit(self, loaded: LoadedHead, transition: Transition) -> LoadedHead:
        """Apply a transition to the head and write the result by compare-and-set.

        If another write came first, the transition is applied again to the newer head. Returns the
        head that is then in the store. Nothing is written if nothing changes and no dropped page
        waits to be deleted.

        Raises what the transition raises (above all ManifestFenced), HeadWentBack if the stored
        head is older than ``loaded``, and StoreUnavailable if the outcome is unknown.
        """
        commit = _Commit(self._store, uuid.uuid4().hex, self._page_entries)
        for attempt in range(ATTEMPTS):
            # Only the caller's head may be stale: later attempts use a head that was just read.
            loaded, changed = self._decide(loaded, transition, may_be_stale=attempt == 0)
            # The transition changes nothing, for example in a repetition after a lost answer.
            if changed == loaded.head and not changed.trash:
                return loaded
            try:
                written = commit.write(loaded, changed)
            except (PreconditionFailed, StoreUnavailable) as error:
                # The write may have landed although its answer was lost, so the head decides.
                current = self._newer(loaded)
                # Pages of the failed attempt that the present head does not name would become
                # orphans.
                commit.discard_pages(loaded, current)
                if current.head.commit_id == commit.commit_id:
                    logger.info("%s: commit settled by reading after: %s", current.head.name, error)
                    return current
                _give_up_if_last(attempt, error)
                loaded = current
            else:
                self._remember(written.head)
                return written
            self._sleep(_RETRY.pause_s(attempt + 1))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def repair(self, error: HeadWentBack, head: Head) -> LoadedHead:
        """Write a repaired head over the older one that ``error`` names (or where there is none).

        The new version is above every version that was seen. Entries that exceed the head's limit
        are sealed into pages first. Raises HeadWentBack if another write came first,
        StoreUnavailable if the outcome is unknown.
        """
        found, commit = error.found, _Commit(self._store, uuid.uuid4().hex, self._page_entries)
        # A repaired head can have entries for several pages: seal until no further page is full.
        sealed = commit.sealed(head)
        while sealed is not head:
            head, sealed = sealed, commit.sealed(sealed)
        # Above both versions: positions that replicas have recorded must not look newer.
        version = max(error.known.version, 0 if found is None else found.head.version) + 1
        head = replace(head, version=version, commit_id=commit.commit_id)
        key, data = head_key(head.topic_id, head.partition), encode_head(head)
        try:
            if found is None:
                written = LoadedHead(head, self._store.create(key, data))
            else:
                written = LoadedHead(head, self._store.replace(key, data, found.version))
        # A lost answer: the commit id in the store shows whether this write landed.
        except (AlreadyExists, PreconditionFailed, StoreUnavailable):
            written = self.load(head.topic_id, head.partition, error.known)
            if written.head.commit_id != commit.commit_id:
                # Another write came first, so the pages of this repair are not needed.
                commit.discard_pages(None, written)
                raise
        self._remember(head)
        return written

    def _newer(self, loaded: LoadedHead) -> LoadedHead:
        """Load the present head, which must not be older than the caller's."""
        head = loaded.head
        return self.load(head.topic_id, head.partition, head.position)

    def _decide(
        self, loaded: LoadedHead, transition: Transition, *, may_be_stale: bool
    ) -> tuple[LoadedHead, Head]:
        """Apply the transition; return the head that it was applied to, and its result.

        ``may_be_stale``: the loaded head may be outdated. A refusal then counts only if a newly
        read head leads to the same refusal. Raises what the transition raises.
        """
        try:
            return loaded, transition(loaded.head)
        except ManifestError:
            if not may_be_stale:
                raise
            current = self._newer(loaded)
            # The head has not changed since, so the refusal is final.
            if current.version == loaded.version:
                raise
            return current, transition(current.head)

    def _load_if_there(self, head: Head) -> LoadedHead | None:
        try:
            return self.load(head.topic_id, head.partition)
        except HeadNotFound:
            return None


class _Commit:
    """One commit: its id, and the pages that its attempts have written."""

    def __init__(self, store: ObjectStore, commit_id: str, page_entries: int) -> None:
        self.commit_id = commit_id
        self._store = store
        self._page_entries = page_entries
        self._written: list[str] = []

    def write(self, base: LoadedHead, changed: Head) -> LoadedHead:
        """Make one attempt to replace ``base`` by ``changed``; return the head as written.

        Deletes pages that earlier commits dropped, seals the oldest entries into a page if there
        are enough, writes the head, and deletes pages that this commit drops. Raises
        PreconditionFailed if another write came first.
        """
        # Names stay in the trash until their objects are deleted, so a crash leaks no page.
        trash = tuple(name for name in changed.trash if not self._dropped(base.head, name))
        head = self.sealed(replace(changed, trash=trash))
        if head == base.head:
            return base
        head = replace(head, version=base.head.version + 1, commit_id=self.commit_id)
        key = head_key(head.topic_id, head.partition)
        # The only step that publishes the change: all pages it names are written already.
        version = self._store.replace(key, encode_head(head), base.version)
        # Best effort: the next commit deletes what remains of the trash.
        for name in head.trash:
            self._delete_page(head, name)
        return LoadedHead(head, version)

    def discard_pages(self, base: LoadedHead | None, current: LoadedHead) -> None:
        """Delete pages that no head refers to.

        Once the head has advanced, the attempt that wrote them can never land. Until then they
        stay.
        """
        if base is not None and current.version == base.version:
            return
        named = {ref.name for ref in current.head.pages}
        for name in [name for name in self._written if name not in named]:
            if self._delete_page(current.head, name):
                self._written.remove(name)

    def sealed(self, head: Head) -> Head:
        """Write the head's oldest entries to a page and return the head that refers to it; return
        the head itself if it is too early for a page."""
        sealed = seal(head, page_name(head.next_page, uuid.uuid4()), self._page_entries)
        if sealed is None:
            return head
        with_page, page = sealed
        self._written.append(page.name)
        key = page_key(head.topic_id, head.partition, page.name)
        self._store.put(key, encode_page(page))
        return with_page

    def _dropped(self, committed: Head, name: str) -> bool:
        """Delete a page that a *committed* head has in its trash; return whether it no longer
        exists.
        """
        return name in committed.trash and self._delete_page(committed, name)

    def _delete_page(self, head: Head, name: str) -> bool:
        """Delete a page, best effort; one that fails stays in the trash for the next commit."""
        try:
            self._store.delete(page_key(head.topic_id, head.partition, name))
        except StoreError as error:
            logger.warning("%s: page %s is not deleted yet: %s", head.name, name, error)
            return False
        return True


def _memory_of(page: ManifestPage) -> int:
    """Return the approximate memory of a page in bytes (measured: a plain entry takes about 1
    kB).
    """
    return sum(
        _ENTRY_BYTES + len(entry.custom_metadata or b"") + _EPOCH_BYTES * len(entry.leader_epochs)
        for entry in page.entries
    )


def _misplaced(where: str, owner: str) -> str:
    return (
        f"{where} belongs to {owner}: it was copied or moved here. Restore the original object. "
        "Until then nothing of the partition is read, copied or deleted"
    )


def _went_back(head: Head, known: HeadPosition, store: ObjectStore) -> str:
    key = head_key(head.topic_id, head.partition)
    return (
        f"{key} in {store.describe()} is of version {head.version} (commit {head.commit_id}), but "
        f"version {known.version} (commit {known.commit_id}) was seen before: the head was "
        "replaced by an older copy of itself. Restore the newest version of that object, or give "
        "up the records that it no longer names with a RecordDeletion. Until then nothing of the "
        "partition is copied, deleted or swept"
    )


def _give_up_if_last(attempt: int, error: StoreError) -> None:
    if attempt < ATTEMPTS - 1:
        return
    if isinstance(error, StoreUnavailable):
        raise error
    raise StoreUnavailable(
        f"{error}; it happened {ATTEMPTS} times in a row, so it is tried again later",
        reason=Reason.MANIFEST_CONTENDED,
        retriable=True,
    ) from error
