"""Cache with a limit in bytes that loads each key once, however many threads request it.

The least recently used value is evicted first. Threads wait for a load that another thread has
started. A failed load raises in all of them and leaves nothing in the cache.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from tidemark.lru import Lru

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Thread-safe cache.

    ``size_of`` returns a value's bytes; a value larger than the limit is returned and not kept.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[V], int]) -> None:
        self.hits = 0
        self.misses = 0
        self._size_of = size_of
        self._values: Lru[K, V] = Lru(limit_bytes)
        self._loading: dict[K, Future[V]] = {}
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached values."""
        return self._values.weight

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._values or key in self._loading

    def __len__(self) -> int:
        return len(self._values)

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
        own_loads: dict[K, Future[V]] = {}
        other_loads: dict[K, Future[V]] = {}
        # Decide under the lock which keys this thread loads; the loads themselves run outside of
        # it.
        with self._lock:
            for key in keys:
                value = self._values.get(key)
                if value is not None:
                    self.hits += 1
                    found[key] = value
                elif key in self._loading:
                    other_loads[key] = self._loading[key]
                else:
                    self.misses += 1
                    self._loading[key] = own_loads[key] = Future()
        if own_loads:
            found.update(self._load(own_loads, load))
        # Only now wait for other threads: waiting before loading could deadlock two threads that
        # need each other's keys.
        found.update((key, future.result()) for key, future in other_loads.items())
        return [found[key] for key in keys]

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drop the values of the keys that match.

        A value that is being loaded now is still cached.
        """
        with self._lock:
            for key in [key for key in self._values if matches(key)]:
                self._values.pop(key)

    def _load(
        self, own_loads: "Mapping[K, Future[V]]", load: Callable[[Sequence[K]], Sequence[V]]
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
                self._keep(key, value)
        for key, value in values.items():
            own_loads[key].set_result(value)
        return values

    def _keep(self, key: K, value: V) -> None:
        size = self._size_of(value)
        if size <= self._values.limit:
            self._values.put(key, value, size)
            self._values.evict()
