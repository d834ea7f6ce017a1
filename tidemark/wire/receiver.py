"""Splitting of a byte stream into Kafka frames with as few copies as possible; no sockets here.

Bytes are received into a scratch buffer that all connections of a loop may share (a read into it is
always followed at once by :meth:`FrameReceiver.received`). Small frames are copied out of it once.
A frame that is longer than the received bytes gets a buffer of its own, into which the kernel
writes the rest directly. That buffer grows with the bytes that have really arrived: a length prefix
alone never causes an allocation of that size.
"""

from tidemark.wire.framing import LENGTH_BYTES, frame_length

Frame = bytes | memoryview

#: Small enough that one turn of the loop can process the smallest requests in it.
SCRATCH_BYTES = 64 * 1024
#: First size of a frame's own buffer, also as a multiple of the received bytes (it doubles later).
_FIRST_ALLOCATION_BYTES = 64 * 1024
_AHEAD = 16


class FrameReceiver:
    """Receiving half of one connection, in the manner of ``asyncio.BufferedProtocol``."""

    __slots__ = (
        "_filled", "_frame", "_least_bytes", "_length", "_prefix", "_scratch", "cautious",
        "limit_bytes",
    )  # fmt: skip

    def __init__(
        self, frame_bytes_max: int, scratch: bytearray | None = None, *, frame_bytes_min: int = 0
    ) -> None:
        """Create a receiver of frames from ``frame_bytes_min`` to ``frame_bytes_max`` bytes.

        ``scratch``: buffer to receive into, which several receivers of a loop may share. None: its
        own.
        """
        self._least_bytes = frame_bytes_min
        #: Longest frame; a change does not affect a frame that has begun.
        self.limit_bytes = frame_bytes_max
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        #: Received part of a length prefix.
        self._prefix = b""
        #: Unfinished frame, with its received bytes and its total length.
        self._frame: bytearray | None = None
        self._filled = 0
        self._length = 0
        #: Whether memory is short: nothing is allocated ahead of what has arrived.
        self.cautious = False

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._frame is not None or bool(self._prefix)

    @property
    def buffered_bytes(self) -> int:
        """Memory of the unfinished frame, in bytes."""
        return len(self._prefix) if self._frame is None else len(self._frame)

    @property
    def frame_bytes(self) -> int:
        """Length of the unfinished frame, 0 while it is unknown."""
        return 0 if self._frame is None else self._length

    @property
    def begun(self) -> memoryview:
        """Received part of the unfinished frame, without its length."""
        return memoryview(b"" if self._frame is None else self._frame)[: self._filled].toreadonly()

    @property
    def missing_bytes(self) -> int:
        """Bytes of the unfinished frame that are still to be received, as far as its length is
        known.
        """
        return 0 if self._frame is None else self._length - self._filled

    def drop(self) -> None:
        """Forget the unfinished frame: no more bytes will be received."""
        self._prefix, self._frame = b"", None

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes of the stream; never empty."""
        if self._frame is None:
            kept = len(self._prefix)
            self._scratch[:kept] = self._prefix
            return self._scratch[kept:]
        if self._filled == len(self._frame):
            self._grow(self._frame)
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """Process ``count`` received bytes; return the frames (without length) that are complete
        now.

        Raises ``FrameError`` for a length outside the limits.
        """
        if self._frame is None:
            return self._split(len(self._prefix) + count)
        self._filled += count
        if self._filled < self._length:
            return []
        frame = memoryview(self._frame).toreadonly()
        self._frame = None
        return [frame]

    def _split(self, end: int) -> list[Frame]:
        """Return the complete frames in the scratch buffer's first ``end`` bytes.

        An incomplete frame at the end gets a buffer of its own, into which its remaining bytes are
        received. Raises FrameError for a length outside the limits.
        """
        frames: list[Frame] = []
        position = 0
        while end - position >= LENGTH_BYTES:
            length = frame_length(
                self._scratch, position, self.limit_bytes, least_bytes=self._least_bytes
            )
            start = position + LENGTH_BYTES
            if start + length > end:
                # Requests before it may delay it, so reserve no more than has arrived.
                self._begin(length, self._scratch[start:end], ahead=_AHEAD if not frames else 0)
                return frames
            position = start + length
            frames.append(bytes(self._scratch[start:position]))
        # At most a part of a length prefix is left; it moves to the start of the scratch buffer.
        self._prefix = bytes(self._scratch[position:end])
        return frames

    def _begin(self, length: int, head: memoryview, *, ahead: int) -> None:
        self._prefix = b""
        self._length = length
        self._filled = len(head)
        size = 0 if self.cautious else max(_FIRST_ALLOCATION_BYTES, ahead * self._filled)
        self._frame = bytearray(max(min(length, size), self._filled + 1))
        self._frame[: self._filled] = head

    def _grow(self, frame: bytearray) -> None:
        larger = bytearray(min(self._length, 2 * len(frame)))
        larger[: self._filled] = frame
        self._frame = larger
