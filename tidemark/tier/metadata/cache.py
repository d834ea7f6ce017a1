"""Cache with a limit in bytes that loads each key once, however many threads request it.

The least recently used value is evicted first. Threads wait for a load that another thread has
started. A failed load raises in all of them and leaves nothing in the cache.

Values that are loaded in advance have a part of the limit for themselves until their first use.
Otherwise they would be evicted by values that other readers have just used for the last time.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from tidemark.lru import Lru

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Load(Future[V]):
    """Load in progress. ``is_requested``: False while it is only loaded in advance."""

    def __init__(self, *, is_requested: bool) -> None:
        super().__init__()
        self.is_requested = is_requested


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
        self._loading: dict[K, _Load[V]] = {}
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
        own_loads: dict[K, _Load[V]] = {}
        other_loads: dict[K, _Load[V]] = {}
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
                    other_loads[key].is_requested = True
                else:
                    self.misses += 1
                    self._loading[key] = own_loads[key] = _Load(is_requested=True)
        if own_loads:
            found.update(self._load(own_loads, load))
        # Only now wait for other threads: waiting before loading could deadlock two threads that
        # need each other's keys.
        found.update((key, future.result()) for key, future in other_loads.items())
        return [found[key] for key in keys]

    def load_in_advance(
        self, keys: Sequence[K], load: Callable[[Sequence[K]], Sequence[V]]
    ) -> None:
        """Load the keys that are neither cached nor being loaded, for later calls of :meth:`get`.

        Does not wait for loads of other threads. Raises the error of ``load``.
        """
        with self._lock:
            missing = [key for key in keys if not self._has(key) and key not in self._loading]
            self.misses += len(missing)
            own_loads = {key: _Load[V](is_requested=False) for key in missing}
            self._loading.update(own_loads)
        if own_loads:
            self._load(own_loads, load)

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

    def _load(
        self, own_loads: "Mapping[K, _Load[V]]", load: Callable[[Sequence[K]], Sequence[V]]
    ) -> dict[K, V]:
        """Load the keys that this thread has claimed, cache the values, and wake waiting threads.

        ``own_loads``: the future of each claimed key, on which other threads may wait.
        """
        try:
            values = dict(zip(own_loads, load(tuple(own_loads)), strict=True))
        # BaseException, because waiting threads would otherwise block for ever.
        except BaseException as error:
            # Forget the loads first, so that a thread that retries starts a load of its own.
            with self._lock:
                for key in own_loads:
                    del self._loading[key]
            for future in own_loads.values():
                future.set_exception(error)
            raise
        # Cache the values before the futures resolve: a later request must not load them again.
        with self._lock:
            for key, value in values.items():
                del self._loading[key]
                if own_loads[key].is_requested:
                    self._keep(key, value)
                else:
                    self._keep_unused(key, value)
        for key, value in values.items():
            own_loads[key].set_result(value)
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
