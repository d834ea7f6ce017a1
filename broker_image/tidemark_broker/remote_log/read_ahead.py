"""Decision how many bytes to load in advance for clients that read the tier sequentially.

A Fetch does not name its consumer. A *stream* is therefore recognized by its partition and by the
offset at which its last read ended. A read that continues no stream starts one, and nothing is
loaded ahead of it. From the second read on, a stream has a window of bytes after its last read. The
window doubles whenever its size in bytes has been read, up to a limit for each stream. A seek
starts a new stream without a window.

All windows share a budget, so that readers do not evict each other's data before it is used. The
number of streams is limited, and an idle one is dropped. Nothing here reads or waits.
"""

import enum
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from tidemark.tier.metadata.head import HeadPosition
from tidemark.tier.metadata.segment import SegmentEntry

_STREAMS_MAX = 1024
#: A slow reader does not need data in advance, and must not take a share of the budget.
_IDLE_S = 10.0
#: Bytes of a request to the store. Larger windows are loaded by several requests concurrently.
REQUEST_BYTES = 2 << 20


class Span(NamedTuple):
    """Bytes to load, counted from the end of the stream's last read, across segment borders."""

    start: int
    size: int


class Source(enum.Enum):
    """Place from which a read takes its data."""

    STORE = enum.auto()
    MEMORY = enum.auto()
    PAGE_CACHE = enum.auto()


class KnownEnd(NamedTuple):
    """Place at which a read has ended, and the position of the head that named the segment."""

    entry: SegmentEntry
    position: int
    head: HeadPosition


class Stream:
    """State of one sequential reader. Positions are counted in bytes from the stream's start."""

    __slots__ = (
        "_grown_at",
        "_has_waited",
        "_last_bytes",
        "_loaded",
        "_read",
        "end",
        "is_in_page_cache",
        "number",
        "used_s",
        "window",
    )

    def __init__(self, size: int, number: int) -> None:
        self.number = number
        #: Bytes to keep loaded after the last read, 0 until a second read continues the first one.
        self.window = 0
        #: Time of the last read in seconds.
        self.used_s = 0.0
        #: Place at which the last read ended.
        self.end: KnownEnd | None = None
        #: Whether the last read that needed more than is in memory found it in the page cache.
        self.is_in_page_cache = False
        #: Whether the last read waited for the store.
        self._has_waited = False
        #: Size of the last read, and position of its end.
        self._last_bytes = self._read = size
        #: Position up to which loads have been started.
        self._loaded = 0
        #: Position at which the window was last increased.
        self._grown_at = 0

    def advance(self, size: int, limit: int) -> None:
        """Account for a read that continues the stream, and increase the window if it is due."""
        self._last_bytes = size
        self._read += size
        # Growth follows the bytes that were read, not the number of reads, which may be small.
        if not self.window:
            self.window, self._grown_at = min(2 * size, limit), self._read
        elif self._read - self._grown_at >= self.window:
            self.window, self._grown_at = min(2 * self.window, limit), self._read

    def found(self, source: Source) -> None:
        """Account for where a read has found its data."""
        if source is Source.PAGE_CACHE:
            self.is_in_page_cache = True
        # The first read of a segment may have waited for its indexes only.
        elif source is Source.STORE and self._has_waited:
            self.is_in_page_cache = False
        self._has_waited = source is Source.STORE

    def next_span(self, limit: int, unit: int) -> Span | None:
        """Return the next bytes to load within ``limit``, None if enough is loaded.

        ``unit``: granularity of the cache in bytes. The span counts as loaded from now on.
        """
        # Data of the page cache is not loaded twice, but a read needs the indexes of its segment.
        if self.is_in_page_cache and self.end is not None:
            left_bytes = self.end.entry.size_bytes - self.end.position
            return Span(left_bytes, 0) if left_bytes <= 2 * self._last_bytes else None
        # One unit of the limit is for the one in which the last read has ended.
        window = min(self.window, limit - unit) // unit * unit
        if window <= 0:
            return None
        # Half a window, so that the reader uses one half while the other one is loaded. At least as
        # much as a read, because each request has a cost.
        half = max(window // 2 // unit * unit, unit)
        read = min(-(-self._last_bytes // unit) * unit, window)
        size = min(max(half, read), max(REQUEST_BYTES // unit * unit, unit))
        start = max(self._loaded - self._read, 0)
        if start + size > window:
            return None
        self._loaded = self._read + start + size
        return Span(start, size)


class ReadAhead:
    """Streams of a broker, owned by the loop's thread.

    ``stream_bytes``: limit of a stream's window (0: nothing is loaded in advance).
    ``total_bytes``: budget of all windows. ``unit_bytes``: granularity of the cache. ``clock``
    returns seconds.
    """

    def __init__(
        self,
        *,
        stream_bytes: int,
        total_bytes: int,
        unit_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """Create it without streams; see the class for the parameters."""
        self._stream_bytes = stream_bytes
        self._total_bytes = total_bytes
        self._unit_bytes = unit_bytes
        self._clock = clock
        #: Streams by partition and next offset, the least recently used first.
        self._streams: OrderedDict[tuple[Hashable, int], Stream] = OrderedDict()
        self._numbers = itertools.count()
        #: Number of streams that have a window.
        self._sharing = 0

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def share(self) -> int:
        """Limit of a window, so that all of them together stay within the budget."""
        return min(self._stream_bytes, self._total_bytes // max(self._sharing, 1))

    def find(self, partition: Hashable, offset: int) -> Stream | None:
        """Return the stream whose last read ended at ``offset``."""
        return self._streams.get((partition, offset))

    def after_read(
        self,
        partition: Hashable,
        offset: int,
        next_offset: int,
        size: int,
        *,
        is_last: bool = False,
    ) -> Stream:
        """Return the stream of a read of ``size`` bytes from ``offset`` up to ``next_offset``.

        ``is_last``: the tier has no later offset, so the stream ends.
        """
        now_s = self._clock()
        self._expire(now_s)
        stream = self._streams.pop((partition, offset), None)
        if stream is None:
            # Another request has shared the read, or the client repeats it: the stream is there
            # already, and has not advanced.
            stream = self._streams.pop((partition, next_offset), None) or Stream(
                size, next(self._numbers)
            )
        else:
            self._sharing -= stream.window > 0
            stream.advance(size, self._stream_bytes)
            self._sharing += stream.window > 0
        stream.used_s = now_s
        # A reader that continues in the local log leaves its share to others at once.
        if is_last:
            self._sharing -= stream.window > 0
            stream.window = 0
        else:
            self._add((partition, next_offset), stream)
        return stream

    def next_span(self, stream: Stream) -> Span | None:
        """Return the next bytes to load for the stream, None if enough is loaded."""
        return stream.next_span(self.share, self._unit_bytes)

    def protects(self, stream: Stream) -> bool:
        """Return whether the budget has room for the data at the beginning of the next read."""
        if stream.window < self._unit_bytes:
            return False
        # Above one unit for each stream, the same part of them keeps theirs. If all tried, each
        # would evict the one of the stream that reads next.
        units = self._total_bytes // self._unit_bytes
        return self._sharing <= units or stream.number % self._sharing < units

    def _add(self, key: tuple[Hashable, int], stream: Stream) -> None:
        # A stream that has caught up with another one takes its place.
        replaced = self._streams.pop(key, None)
        if replaced is not None:
            self._sharing -= replaced.window > 0
        self._streams[key] = stream
        while len(self._streams) > _STREAMS_MAX:
            self._drop_oldest()

    def _expire(self, now_s: float) -> None:
        while self._streams and now_s - next(iter(self._streams.values())).used_s > _IDLE_S:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, stream = self._streams.popitem(last=False)
        self._sharing -= stream.window > 0
