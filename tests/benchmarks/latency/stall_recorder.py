"""A broker that records its stalls: ``-m tests.benchmarks.latency.stall_recorder --config F``.

It is the broker's own program, on an event loop that measures what it runs. It records turns of the
loop above 5 ms with their longest callback, work of the control session and of metadata,
collections of garbage, flushes and writes of files, and the time until a thread starts a call or
the loop receives its result. They are written to ``F.stalls.json`` when the broker has shut down.

Measuring takes some microseconds of each turn, so figures of such a broker are not compared.
"""

import asyncio
import contextlib
import functools
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks.latency.stalls import StallEvent, write_events
from tidemark_broker import main as broker

TURN_NS = 5_000_000
#: Shortest duration of the other events.
_OTHER_NS = 1_000_000
#: Events that are kept. The oldest are dropped.
_EVENTS_MAX = 500_000
_PACKAGE = "tidemark_broker"
#: Modules of the broker whose callbacks are work of the session with the controller.
_CONTROL = (
    "tidemark_broker.control.",
    "tidemark_broker.replication.metadata",
    "tidemark_broker.topic_changes.",
)
_PROTOCOL_CALLS = ("data_received", "buffer_updated", "resume_writing", "eof_received")

TURN, CONTROL, GARBAGE = "turn of the loop", "metadata and status", "garbage collection"
FLUSH, WRITE = "flush", "write"
TO_THREAD, TO_LOOP = "hand-over to a thread", "hand-over to the loop"


class StallRecorder:
    """Events of one process."""

    def __init__(self, events_max: int = _EVENTS_MAX) -> None:
        self.events: deque[StallEvent] = deque(maxlen=events_max)
        self.dropped = 0

    def add(self, event: StallEvent) -> None:
        """Keep an event. Called from any thread."""
        self.dropped += len(self.events) == self.events.maxlen
        self.events.append(event)

    def since(self, kind: str, label: str, began_ns: int) -> None:
        """Record an event that ends now, if it was long."""
        ended_ns = time.monotonic_ns()
        if ended_ns - began_ns >= _OTHER_NS:
            self.add(StallEvent(kind, label, began_ns, ended_ns))

    def install(self) -> None:
        """Measure this process from now on, and event loops that are created later."""
        RecordingLoop.recorder = self
        uvloop.Loop = RecordingLoop
        self._measure_garbage()
        for name in ("fsync", "fdatasync"):
            self._measure_file_call(name, FLUSH)
        for name in ("pwrite", "pwritev"):
            self._measure_file_call(name, WRITE)
        self._measure_executors()

    def _measure_garbage(self) -> None:
        began_ns = 0

        def collected(phase: str, info: dict[str, int]) -> None:
            nonlocal began_ns
            if phase == "start":
                began_ns = time.monotonic_ns()
            else:
                self.since(GARBAGE, f"generation {info['generation']}", began_ns)

        gc.callbacks.append(collected)

    def _measure_file_call(self, name: str, kind: str) -> None:
        original = getattr(os, name)

        def measured(*args: Any) -> Any:
            began_ns = time.monotonic_ns()
            try:
                return original(*args)
            finally:
                # The caller's caller is named too: helpers flush files of many kinds.
                caller = sys._getframe(1)
                outer = caller.f_back or caller
                self.since(
                    kind, f"{caller.f_code.co_qualname} of {outer.f_code.co_qualname}", began_ns
                )

        setattr(os, name, measured)

    def _measure_executors(self) -> None:
        recorder, original = self, ThreadPoolExecutor.submit

        def submit(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            asked_ns = time.monotonic_ns()

            def started(*args: Any, **kwargs: Any) -> Any:
                recorder.since(TO_THREAD, pool._thread_name_prefix, asked_ns)
                return function(*args, **kwargs)

            return original(pool, started, *args, **kwargs)

        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign,assignment]


class RecordingLoop(uvloop.Loop):
    """Event loop that records its long turns.

    A turn is what runs between two passes of a marker, which the first callback of a turn puts
    behind the callbacks that are ready.
    """

    #: Set by :meth:`StallRecorder.install`: uvloop creates the loop.
    recorder: StallRecorder

    def __init__(self) -> None:
        super().__init__()
        self._is_in_turn = False
        self._began_ns = self._ended_ns = self._began_cpu_ns = 0
        self._longest_ns = self._callbacks = 0
        self._longest: Callable[..., Any] | None = None
        self._schedule = b""
        # Not on all kernels.
        self._schedule_file = -1
        with contextlib.suppress(OSError):
            self._schedule_file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._measured: set[type] = set()

    def _measure(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Run a callback of the loop."""
        began_ns = time.monotonic_ns()
        # The first callback of a turn puts the marker behind those that are ready.
        if not self._is_in_turn:
            self._is_in_turn = True
            self._began_ns, self._began_cpu_ns = began_ns, time.thread_time_ns()
            self._schedule = self._read_schedule()
            super().call_soon(self._end_turn)
        try:
            return callback(*args)
        finally:
            # Also after an error: the loop reports it and continues.
            self._ended_ns = time.monotonic_ns()
            took_ns = self._ended_ns - began_ns
            self._callbacks += 1
            if took_ns > self._longest_ns:
                self._longest_ns, self._longest = took_ns, callback
            # Names are looked up only of long callbacks, because that takes longer than most.
            if took_ns >= _OTHER_NS:
                label = label_of(callback)
                if label.startswith(_CONTROL):
                    self.recorder.add(StallEvent(CONTROL, label, began_ns, self._ended_ns))

    def _end_turn(self) -> None:
        if self._ended_ns - self._began_ns >= TURN_NS:
            queued = _queued_ns(self._read_schedule()) - _queued_ns(self._schedule)
            cpu_ns = time.thread_time_ns() - self._began_cpu_ns
            label = label_of(self._longest)
            times = self._began_ns, self._ended_ns, cpu_ns, queued
            self.recorder.add(StallEvent(TURN, label, *times, callbacks=self._callbacks))
        self._is_in_turn, self._longest_ns, self._longest = False, 0, None
        self._callbacks = 0

    def _read_schedule(self) -> bytes:
        return b"" if self._schedule_file < 0 else os.pread(self._schedule_file, 64, 0)

    # ------------------------------------------------------------ asyncio.AbstractEventLoop

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._measure, callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_later(delay, self._measure, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        asked_ns = time.monotonic_ns()

        def received() -> Any:
            self.recorder.since(TO_LOOP, label_of(callback), asked_ns)
            return self._measure(callback, *args)

        return super().call_soon_threadsafe(received, context=context)

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().create_connection(self._protocol(protocol_factory), *args, **kwargs)

    async def connect_accepted_socket(
        self, protocol_factory: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return await super().connect_accepted_socket(
            self._protocol(protocol_factory), *args, **kwargs
        )

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().create_server(self._protocol(protocol_factory), *args, **kwargs)

    def _protocol(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """Return a factory of protocols whose calls by a transport are measured."""

        def made() -> Any:
            protocol = factory()
            if type(protocol) not in self._measured:
                self._measured.add(type(protocol))
                for name in _PROTOCOL_CALLS:
                    if hasattr(protocol, name):
                        self._measure_calls(type(protocol), name)
            return protocol

        return made

    def _measure_calls(self, protocol: type, name: str) -> None:
        original = getattr(protocol, name)

        @functools.wraps(original)
        def measured(*args: Any) -> Any:
            return self._measure(original, *args)

        setattr(protocol, name, measured)


def label_of(callback: Any) -> str:
    """Return module and qualified name of a function, or of a task's coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        # A coroutine that has ended still has its code, but no frame.
        path = Path(coroutine.cr_code.co_filename).with_suffix("")
        names = path.parts[path.parts.index(_PACKAGE) :] if _PACKAGE in path.parts else [path.name]
        return ".".join((*names, coroutine.__qualname__))
    callback = getattr(callback, "func", callback)
    module = getattr(callback, "__module__", None) or type(callback).__module__
    return f"{module}.{getattr(callback, '__qualname__', type(callback).__qualname__)}"


def _queued_ns(schedule: bytes) -> int:
    """Return the time in which a thread waited for a core, from its ``schedstat``."""
    return int(schedule.split()[1]) if schedule else 0


def path_of(config: Path) -> Path:
    """Return the path of the events of the broker with this configuration file."""
    return config.with_name(f"{config.name}.stalls.json")


def main() -> int:
    """Run the broker, then write its events."""
    recorder = StallRecorder()
    recorder.install()
    try:
        return broker.main()
    finally:
        config = Path(sys.argv[sys.argv.index("--config") + 1])
        write_events(path_of(config), recorder.events, recorder.dropped)


if __name__ == "__main__":
    sys.exit(main())
