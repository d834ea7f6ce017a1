"""A cache with a limit in bytes that loads each key once, however many threads ask for it.

Least recently used goes first. What a thread is loading, others wait for instead of loading it too;
a failed load is told to all who waited and kept by nobody.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Safe between threads. ``size_of`` gives a value's bytes; one that is larger than the limit
    is handed out and not kept."""

    def __init__(self, limit_bytes: int, size_of: Callable[[V], int]) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self._loading: dict[K, Future[V]] = {}
        self._lock = Lock()

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
                if key in self._values:
                    self.hits += 1
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
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
                self.size_bytes -= self._size_of(self._values.pop(key))

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
        if size > self.limit_bytes:
            return
        self._values[key] = value
        self.size_bytes += size
        while self.size_bytes > self.limit_bytes:
            _, oldest = self._values.popitem(last=False)
            self.size_bytes -= self._size_of(oldest)
