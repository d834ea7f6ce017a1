"""Cache with a limit in bytes that loads each key once, however many threads request it.

The least recently used value is evicted first. Threads wait for a load that another thread has
started. A failed load raises in all of them and leaves nothing in the cache.

Values that are loaded in advance have a part of the limit for themselves until their first use.
Otherwise they would be evicted by values that other readers have just used for the last time.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, Generic, TypeVar

from tidemark.lru import Lru
from tidemark.tier.stores.objects import NotInMemory

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _refuse(_: Sequence[Hashable]) -> Sequence[Any]:
    raise NotInMemory


class _Load(Future[Mapping[K, V]]):
    """Load in progress of several keys. Keys that are not ``requested`` are loaded in advance."""

    def __init__(self, requested: Iterable[K] = ()) -> None:
        super().__init__()
        self.requested = set(requested)


class ByteCache(Generic[K, V]):
    """Thread-safe cache.

    ``size_of`` returns a value's bytes; a value larger than the limit is returned and not kept.
    ``advance_bytes``: part of the limit for values that are loaded in advance. ``on_unused`` is
    called with the bytes of such a value that is evicted before its first use.
    """

    def __init__(
        self,
        limit_bytes: int,
        size_of: Callable[[V], int],
        *,
        advance_bytes: int = 0,
        on_unused: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self._size_of = size_of
        self._on_unused = on_unused
        self._limit = limit_bytes
        self._values: Lru[K, V] = Lru(limit_bytes)
        #: Values that are loaded in advance and not used yet. The oldest is evicted first.
        self._unused: Lru[K, V] = Lru(min(advance_bytes, limit_bytes))
        self._loading: dict[K, _Load[K, V]] = {}
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached values."""
        return self._values.weight + self._unused.weight

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return self._has(key) or key in self._loading

    def __len__(self) -> int:
        return len(self._values) + len(self._unused)

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return the value; load it in this thread unless it is cached or being loaded.

        Raises what the load raises.
        """
        return self.get_many((key,), lambda _: (load(),))[0]

    def get_many(
        self, keys: Sequence[K], load: Callable[[Sequence[K]], Sequence[V]]
    ) -> Sequence[V]:
        """Return the values in the order of their keys, loading those that are not cached.

        Keys that are neither cached nor being loaded by another thread are loaded in this thread,
        by one call of ``load``. For keys that another thread is loading, the call waits for that
        load. Raises the error of either load.
        """
        found: dict[K, V] = {}
        own_keys: list[K] = []
        other_loads: dict[K, _Load[K, V]] = {}
        # Decide under the lock which keys this thread loads; the loads themselves run outside of
        # it.
        with self._lock:
            for key in keys:
                value = self._used(key)
                if value is not None:
                    self.hits += 1
                    found[key] = value
                elif key in self._loading:
                    other_loads[key] = self._loading[key]
                    other_loads[key].requested.add(key)
                else:
                    own_keys.append(key)
            if own_keys:
                own_load = self._claim(own_keys, requested=own_keys)
        if own_keys:
            found.update(self._load(own_keys, own_load, load))
        # Only now wait for other threads: waiting before loading could deadlock two threads that
        # need each other's keys.
        found.update((key, other.result()[key]) for key, other in other_loads.items())
        return [found[key] for key in keys]

    def get_cached(self, key: K) -> V:
        """Return the value if it is cached. Raises NotInMemory."""
        return self.get_many_cached((key,))[0]

    def get_many_cached(
        self,
        keys: Sequence[K],
        load: Callable[[Sequence[K]], Sequence[V]] = _refuse,
    ) -> Sequence[V]:
        """Return what :meth:`get_many` does, without a wait for loads of other threads.

        ``load`` must not wait either, and raises NotInMemory if it would. Raises NotInMemory, too,
        for a key that another thread is loading.
        """
        with self._lock:
            if any(key in self._loading for key in keys):
                raise NotInMemory
            found = {key: value for key in keys if (value := self._used(key)) is not None}
            self.hits += len(found)
        missing = [key for key in keys if key not in found]
        # Not claimed, because a thread that waited for this load would receive its NotInMemory.
        if missing:
            loaded = load(missing)
            with self._lock:
                self.misses += len(missing)
                for key, value in zip(missing, loaded, strict=True):
                    self._keep(key, value)
                    found[key] = value
        return [found[key] for key in keys]

    def load_in_advance(
        self, keys: Sequence[K], load: Callable[[Sequence[K]], Sequence[V]]
    ) -> None:
        """Load the keys that are neither cached nor being loaded, for later calls of :meth:`get`.

        Does not wait for loads of other threads. Raises the error of ``load``.
        """
        with self._lock:
            missing = [key for key in keys if not self._has(key) and key not in self._loading]
            own_load = self._claim(missing)
        if missing:
            self._load(missing, own_load, load)

    def protect(self, key: K) -> None:
        """Treat a cached value as loaded in advance, because its next use is expected soon."""
        with self._lock:
            value = self._values.pop(key)
            if value is not None:
                self._keep_unused(key, value)

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drop the values of the keys that match.

        A value that is being loaded now is still cached.
        """
        with self._lock:
            for values in (self._values, self._unused):
                for key in [key for key in values if matches(key)]:
                    values.pop(key)

    def _claim(self, keys: Sequence[K], requested: Iterable[K] = ()) -> _Load[K, V]:
        """Return the load of the keys, on which other threads may wait. Needs the lock."""
        self.misses += len(keys)
        own_load = _Load[K, V](requested)
        self._loading.update(dict.fromkeys(keys, own_load))
        return own_load

    def _load(
        self,
        keys: Sequence[K],
        own_load: _Load[K, V],
        load: Callable[[Sequence[K]], Sequence[V]],
    ) -> Mapping[K, V]:
        """Load the keys that this thread has claimed, cache the values, wake waiting threads."""
        try:
            values = dict(zip(keys, load(tuple(keys)), strict=True))
        # BaseException, because waiting threads would otherwise block for ever.
        except BaseException as error:
            # Forget the loads first, so that a thread that retries starts a load of its own.
            with self._lock:
                for key in keys:
                    del self._loading[key]
            own_load.set_exception(error)
            raise
        # Cache the values before the future resolves: a later request must not load them again.
        with self._lock:
            for key, value in values.items():
                del self._loading[key]
                if key in own_load.requested:
                    self._keep(key, value)
                else:
                    self._keep_unused(key, value)
        own_load.set_result(values)
        return values

    def _has(self, key: K) -> bool:
        return key in self._values or key in self._unused

    def _used(self, key: K) -> V | None:
        """Return a cached value and mark it as used; None if it is not cached."""
        value = self._unused.pop(key)
        if value is None:
            return self._values.get(key)
        self._keep(key, value)
        return value

    def _keep(self, key: K, value: V) -> None:
        size = self._size_of(value)
        if size <= self._limit:
            self._values.put(key, value, size)
            self._evict()

    def _keep_unused(self, key: K, value: V) -> None:
        size = self._size_of(value)
        if size <= self._unused.limit:
            self._unused.put(key, value, size)
            for _, unused in self._unused.evict():
                self._on_unused(self._size_of(unused))
            self._evict()
        # Without room of its own it is a value like any other.
        else:
            self._keep(key, value)

    def _evict(self) -> None:
        # Both parts together stay within the limit.
        self._values.limit = self._limit - self._unused.weight
        self._values.evict()
