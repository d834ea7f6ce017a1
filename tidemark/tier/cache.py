"""A cache with a limit in bytes that loads each key once, however many threads ask for it.

Least recently used goes first. What a thread is loading, others wait for instead of loading it too;
a failed load is told to all who waited and kept by nobody.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from tidemark.lru import Lru

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Safe between threads. ``size_of`` gives a value's bytes; one that is larger than the limit
    is handed out and not kept."""

    def __init__(self, limit_bytes: int, size_of: Callable[[V], int]) -> None:
        self.hits = 0
        self.misses = 0
        self._size_of = size_of
        self._values: Lru[K, V] = Lru(limit_bytes)
        self._loading: dict[K, Future[V]] = {}
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        """Of all values that are kept."""
        return self._values.weight

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._values or key in self._loading

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The value, loaded in this thread if nobody has or does; raises what the load raises."""
        return self.get_many((key,), lambda _: (load(),))[0]

    def get_many(
        self, keys: Sequence[K], load: Callable[[Sequence[K]], Sequence[V]]
    ) -> Sequence[V]:
        """The values, in the order of their keys; those that nobody has or loads are loaded in this
        thread by one call of ``load``."""
        found: dict[K, V] = {}
        mine: dict[K, Future[V]] = {}
        others: dict[K, Future[V]] = {}
        with self._lock:
            for key in keys:
                value = self._values.get(key)
                if value is not None:
                    self.hits += 1
                    found[key] = value
                elif key in self._loading:
                    others[key] = self._loading[key]
                else:
                    self.misses += 1
                    self._loading[key] = mine[key] = Future()
        if mine:
            found.update(self._load(mine, load))
        found.update((key, future.result()) for key, future in others.items())
        return [found[key] for key in keys]

    def forget(self, matches: Callable[[K], bool]) -> None:
        """Drop the values of some keys; what is being loaded now is kept when it comes."""
        with self._lock:
            for key in [key for key in self._values if matches(key)]:
                self._values.pop(key)

    def _load(
        self, mine: "Mapping[K, Future[V]]", load: Callable[[Sequence[K]], Sequence[V]]
    ) -> dict[K, V]:
        try:
            values = dict(zip(mine, load(tuple(mine)), strict=True))
        except BaseException as error:
            with self._lock:
                for key in mine:
                    del self._loading[key]
            for future in mine.values():
                future.set_exception(error)
            raise
        with self._lock:
            for key, value in values.items():
                del self._loading[key]
                self._keep(key, value)
        for key, value in values.items():
            mine[key].set_result(value)
        return values

    def _keep(self, key: K, value: V) -> None:
        size = self._size_of(value)
        if size <= self._values.limit:
            self._values.put(key, value, size)
            self._values.evict()
