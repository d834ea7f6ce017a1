"""Requests that repeat an earlier one of their connection in all but one field.

A client without linger sends the same Produce request again and again: only the correlation id and
the records differ. :class:`Repeats` remembers the bytes in front of that field with the request
that the codec has read from them. A later frame with the same bytes needs no codec, and its
response may be an earlier one with two other numbers (:func:`response_template`).

No rule of the format is repeated here: the codec writes the messages once, and their bytes show
where the fields are. A request is remembered only if the codec writes exactly the bytes that the
client has sent. So both ways of reading find the same message in the same bytes.
"""

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from tidemark.wire.bounds import ANY, Remaining
from tidemark.wire.codec import LARGE_BYTES, Pieces, TypeCodec, bytes_codec
from tidemark.wire.framing import (
    LENGTH_BYTES,
    REQUEST_HEAD_BYTES,
    RESPONSE_HEAD_BYTES,
    body_pieces,
    request_body,
)

Q = TypeVar("Q")
R = TypeVar("R")
Frame = bytes | memoryview

#: Requests that a connection remembers, and different lengths of their fronts: each is a look-up.
KEPT_MAX, LENGTHS_MAX = 16, 4
#: Longest front that is remembered.
FRONT_BYTES_MAX = 512
#: Other requests that are examined, and their number until all are forgotten, since the client may
#: have turned to other topics. To examine one takes as long as to serve one.
EXAMINED_MAX, MISSES_MAX = 32, 4096
#: Value that the codec does not join with the bytes around it.
_LARGE = bytes(LARGE_BYTES)
#: Limits of a field that has neither elements nor strings.
_UNLIMITED = Remaining(ANY)
_INT64_BYTES = 8
#: Layout of a response, which all connections share.
_layout = lru_cache(maxsize=256)(struct.Struct)


class Repeat(Generic[Q, R]):
    """A request that was sent before. ``response`` is for the one who answers it."""

    __slots__ = ("behind", "codec", "place", "request", "response", "version")

    def __init__(self, version: int, request: Q, codec: TypeCodec, behind: bytes) -> None:
        self.version = version
        #: The request, whose field is empty.
        self.request = request
        self.response: R | None = None
        #: Codec of the field, and the bytes behind it.
        self.codec = codec
        self.behind = behind
        #: Length of the last frame, the bytes in front of the value there, its start and its end.
        self.place = (0, b"", 0, 0)


class Repeats(Generic[Q, R]):
    """Requests of one Api that a connection has sent before, by their bytes in front of the field.

    The field has Kafka's type *records*, and only tagged fields follow it. A frame is looked up
    without its Api key and correlation id, so :meth:`find` and :meth:`learn` must only be called
    for frames of that one Api.
    """

    __slots__ = ("_fronts", "_lengths", "_misses")

    def __init__(self) -> None:
        self._fronts: dict[bytes | memoryview, Repeat[Q, R]] = {}
        #: Positions behind the fronts in their frames.
        self._lengths: tuple[int, ...] = ()
        self._misses = 0

    def find(self, frame: Frame, version: int) -> tuple[Repeat[Q, R], bytes] | None:
        """Return the request that this frame repeats and the value of its field, None if unknown.

        A frame with errors behind the front is unknown, so the general path reports them.
        """
        # A frame in a buffer of its own is a large one, for which the codec costs little.
        if type(frame) is not bytes:
            return None
        for end in self._lengths:
            repeat = self._fronts.get(frame[REQUEST_HEAD_BYTES:end])
            if repeat is None or repeat.version != version:
                continue
            value = _field(frame, end, repeat)
            return None if value is None else (repeat, value)
        return None

    def learn(
        self, frame: Frame, version: int, request: Q, with_field: Callable[[Q, bytes], Q]
    ) -> None:
        """Remember a request that the codec has read from ``frame``, if there is room.

        ``with_field`` returns the request with another value of the field.
        """
        self._misses += 1
        if self._misses > MISSES_MAX:
            self._fronts, self._lengths, self._misses = {}, (), 0
        is_full = len(self._fronts) == KEPT_MAX or self._misses > EXAMINED_MAX
        if is_full or type(frame) is not bytes:
            return
        request_type: Any = type(request)
        codec = bytes_codec(flexible=request_type.__flexible__)
        # The codec leaves a large value apart, which shows the bytes in front of it and behind it.
        front, large, *behind = body_pieces(with_field(request, _LARGE), request_type)
        # A long name is left apart as well, and is in front of the field.
        if large is not _LARGE:
            return
        front = front[: len(front) - len(_prefix(codec))]
        start = request_body(frame, flexible=request_type.__flexible__)
        end = start + len(front)
        repeat: Repeat[Q, R] = Repeat(version, with_field(request, b""), codec, b"".join(behind))
        # A client may write the same message in other bytes, for example with unknown fields.
        if frame[start:end] != front or _field(frame, end, repeat) is None:
            return
        if end not in self._lengths:
            if len(self._lengths) == LENGTHS_MAX or end > FRONT_BYTES_MAX:
                return
            self._lengths = (*self._lengths, end)
        self._fronts[frame[REQUEST_HEAD_BYTES:end]] = repeat


def _prefix(codec: TypeCodec) -> bytes:
    """Return the length that the codec writes in front of a large value."""
    out = Pieces()
    codec.write(_LARGE, out)
    return out.joined()[0]


def _field(frame: bytes, position: int, repeat: Repeat[Any, Any]) -> bytes | None:
    """Return the value of the field at ``position``, None unless the frame ends as it should."""
    size, prefix, start, end = repeat.place
    # With the prefix and the length of the last frame, the value has the same place.
    if len(frame) != size or frame[position:start] != prefix:
        try:
            value, end = repeat.codec.read(frame, position, _UNLIMITED)
        except (ValueError, LookupError, struct.error):
            return None
        if value is None:
            return None
        start = end - len(value)
        repeat.place = (len(frame), frame[position:start], start, end)
    return frame[start:end] if frame[end:] == repeat.behind else None


def response_template(frame: bytes, flipped: bytes) -> Callable[[int, int], bytes]:
    """Return a function from a correlation id and a number to ``frame`` with these two.

    The number has 64 bits. ``flipped`` is the same response, in which each of them is inverted.
    """
    assert len(frame) == len(flipped)
    differing = [at for at in range(len(frame)) if frame[at] != flipped[at]]
    start, end = differing[0], differing[0] + _INT64_BYTES
    assert differing == list(range(start, end)), differing
    head, between = frame[:LENGTH_BYTES], frame[RESPONSE_HEAD_BYTES:start]
    behind = frame[end:]
    # A connection may have 16 such functions, and a closure would be three times as large.
    pack = _layout(f">{len(head)}si{len(between)}sq{len(behind)}s").pack
    return partial(_filled, pack, head, between, behind)


def _filled(
    pack: Callable[..., bytes],
    head: bytes,
    between: bytes,
    behind: bytes,
    correlation_id: int,
    number: int,
) -> bytes:
    return pack(head, correlation_id, between, number, behind)
