"""Time, chance and the order of everything: one seeded heap of events for all processes.

Every process of the cluster has an event loop of its own (:class:`ProcessLoop`), so that the real
asyncio code runs unchanged; all loops take their turns from one world. A *step* is one event
delivered: a message, a timer, a thread's work or its end, or a task that one of them resumed.
A process that stalls gets its events later, in their order; one that died gets none.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from typing import Any


class PowerCut(BaseException):
    """The machine that a step ran on has lost its power in the middle of it."""


#: Wall clock at the beginning of a run, in ms since the epoch.
T0_MS = 1_700_000_000_000


class ScheduledEvent:
    """A callback that a process is to run; also what asyncio holds as its handle."""

    __slots__ = ("args", "callback", "is_cancelled", "loop", "when_s")

    def __init__(
        self, loop: "ProcessLoop", when_s: float, callback: Callable[..., object], args: tuple
    ) -> None:
        self.loop = loop
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class Clockwork:
    """The heap. ``chance`` is the only source of randomness of a run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(f"tidemark-{seed}")
        self.now_s = 0.0
        self.steps = 0
        self.heap: list[tuple[float, int, ScheduledEvent]] = []
        self.ready: deque[ScheduledEvent] = deque()
        self._number = 0
        self.over = False
        self.failures: list[tuple[str, BaseException]] = []
        self.loops: list[ProcessLoop] = []
        #: The world's own events: networks, clients, faults.
        self.ether = ProcessLoop(self, "world")
        #: Set by a power cut in the middle of a disk operation; looked at after each step.
        self.after_step: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return T0_MS + int(self.now_s * 1000)

    def at(
        self, when_s: float, loop: "ProcessLoop", callback: Callable[..., object], *args: Any
    ) -> ScheduledEvent:
        """Run ``callback`` in a process at a time."""
        event = ScheduledEvent(loop, when_s, callback, args)
        self._number += 1
        heapq.heappush(self.heap, (when_s, self._number, event))
        return event

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> ScheduledEvent:
        """Run ``callback`` outside any process, later."""
        return self.at(self.now_s + delay_s, self.ether, callback, *args)

    def run(self, until_s: float, steps_max: int) -> None:  # noqa: PLR0912 - the one hot loop
        """Deliver events until a time, or until a number of steps."""
        heap, ready, pop = self.heap, self.ready, heapq.heappop
        current = None
        steps = 0
        # asyncio looks up the running loop on every call, so it is set only when the process
        # changes.
        set_running = events._set_running_loop
        try:
            while steps < steps_max and not self.over:
                # Callbacks that are due now come first, in their order. Then time advances to the
                # next timer.
                if ready:
                    event = ready.popleft()
                elif heap and heap[0][0] <= until_s:
                    when_s, _, event = pop(heap)
                    if event.is_cancelled:
                        continue
                    self.now_s = max(self.now_s, when_s)
                else:
                    self.now_s = max(self.now_s, until_s)
                    return
                loop = event.loop
                if event.is_cancelled or loop.dead:
                    continue
                # A stalled process gets its events at the end of the stall.
                if loop.held is not None:
                    loop.held.append(event)
                    continue
                if loop is not current:
                    set_running(loop)
                    current = loop
                steps += 1
                try:  # noqa: SIM105 - a context manager would cost more than the step
                    event.callback(*event.args)
                except PowerCut:
                    pass  # what is to be done is noted in ``after_step``
                # The checks of this process's state, and then those of the whole world.
                if loop.watch is not None:
                    loop.watch()
                if self.after_step:
                    todo, self.after_step = self.after_step, []
                    for call in todo:
                        call()
        finally:
            self.steps += steps
            set_running(None)

    def forget(self) -> None:
        """The run is over: whatever still waits is ended, where nothing can come of it."""
        self.over = True
        self.heap.clear()
        for loop in self.loops:
            # Coroutines are closed in the loop that they belong to, as their cleanup may use it.
            events._set_running_loop(loop)
            for task in loop.tasks:
                if not task.done():
                    _close(task.get_coro())
        events._set_running_loop(None)
        self.ready.clear()
        self.heap.clear()


def _close(coroutine: Any) -> None:
    """One that waits again while it is being closed is closed again."""
    for _ in range(20):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 - no caller is left to handle it
            continue
        return


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. ``watch`` is called after each of its steps."""

    def __init__(self, world: Clockwork, name: str) -> None:
        self.world = world
        self.name = name
        world.loops.append(self)
        self.dead = False
        #: Events that wait for the end of a stall, None while there is none.
        self.held: list[ScheduledEvent] | None = None
        self.watch: Callable[[], None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        #: What a thread's work takes, seconds: shortest, longest, and the odd hiccup.
        self.threads_s = (0.0002, 0.003, 0.4)
        self.process: Any = None

    # ---- stalls and death

    def stall(self, seconds: float) -> None:
        """Nothing of this process runs for a while."""
        if self.held is None and not self.dead:
            self.held = []
            self.world.after(seconds, self.wake)

    def wake(self) -> None:
        held, self.held = self.held, None
        if held:
            self.world.ready.extend(held)

    def die(self) -> None:
        """No event of this process is delivered any more."""
        self.dead = True
        self.held = None
        self.watch = None

    # ---- what asyncio requires of a loop

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> ScheduledEvent:
        event = ScheduledEvent(self, self.world.now_s, callback, args)
        self.world.ready.append(event)
        return event

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> ScheduledEvent:
        world = self.world
        return world.at(world.now_s + max(delay, 0.0), self, callback, *args)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> ScheduledEvent:
        return self.world.at(max(when, self.world.now_s), self, callback, *args)

    def time(self) -> float:
        return self.world.now_s

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name="task")
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append(task)
        # Finished tasks are dropped now and then, or a long run would keep all of them.
        if len(self.tasks) > 5000:
            self.tasks = [item for item in self.tasks if not item.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        done = self.create_future()
        self.world.at(self._thread_s(), self, self._work, done, func, args)
        return done

    def _thread_s(self) -> float:
        chance, (least, most, hiccup) = self.world.chance, self.threads_s
        seconds = least + (most - least) * chance.random()
        # One call in a hundred meets a slow disk.
        if chance.random() < 0.01:
            seconds += hiccup * chance.random()
        return self.world.now_s + seconds

    def _work(self, done: "asyncio.Future[Any]", func: Any, args: tuple) -> None:
        """A thread's work takes effect at one moment and is known to be done at a later one."""
        try:
            result, error = func(*args), None
        except Exception as raised:  # noqa: BLE001 - belongs to who waits
            result, error = None, raised
        self.world.at(self._thread_s(), self, _settle, done, result, error)

    def submit(self, func: Any) -> "ThreadFuture[Any]":
        """A call in a pool of threads."""
        done: ThreadFuture[Any] = ThreadFuture()
        self.world.at(self._thread_s(), self, self._pooled, done, func)
        return done

    def _pooled(self, done: "ThreadFuture[Any]", func: Any) -> None:
        # Cancelled before a thread took it.
        if not done.set_running_or_notify_cancel():
            return
        try:
            result, error = func(), None
        except Exception as raised:  # noqa: BLE001 - belongs to who waits
            result, error = None, raised
        self.world.at(self._thread_s(), self, _settle, done, result, error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.world.over:
            self.world.failures.append((self.name, error))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.dead


def _settle(done: Any, result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class PooledThreads:
    """Replacement for a ``ThreadPoolExecutor`` of the process whose loop it receives."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def submit(self, func: Any, *args: Any) -> "ThreadFuture[Any]":
        return self._loop.submit(func if not args else lambda: func(*args))

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        return
