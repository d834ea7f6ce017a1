"""Background tasks of the event loop: start, end, and pauses that an event ends early.

:class:`Deferred` is a result that is delivered later without a task.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Deferred(Generic[T]):
    """Result that is delivered later, in the turn of the event loop that has it.

    A task and a future would each add a turn, and cost more than a small request. The owner calls
    :meth:`deliver` or :meth:`fail` once, the receiver :meth:`then` once before it.
    """

    __slots__ = ("_failed", "_give_up", "_receive")

    def __init__(self, give_up: Callable[[], object] | None = None) -> None:
        """Create it without a receiver. ``give_up`` ends the work for it."""
        self._give_up = give_up
        self._receive: Callable[[T], object]
        self._failed: Callable[[BaseException], object]

    def given_up_by(self, give_up: Callable[[], object]) -> None:
        """Set the function that ends the work."""
        self._give_up = give_up

    def then(
        self, receive: Callable[[T], object], failed: Callable[[BaseException], object]
    ) -> None:
        """Set the receivers of the result, and of an error instead of it."""
        self._receive, self._failed = receive, failed

    def mapped(self, convert: Callable[[T], S]) -> "Deferred[S]":
        """Return the converted result, which is delivered in the same turn."""
        made: Deferred[S] = Deferred(self.cancel)
        self.then(lambda result: made.deliver(convert(result)), made.fail)
        return made

    def deliver(self, result: T) -> None:
        """Pass the result to the receiver, and an error of the receiver to ``failed``."""
        self._give_up = None
        try:
            self._receive(result)
        except Exception as error:  # noqa: BLE001 - the receiver handles it
            self._failed(error)

    def deliver_from(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Deliver the result of a coroutine, which runs as the returned task."""
        task = asyncio.get_running_loop().create_task(work)
        self._give_up = task.cancel
        task.add_done_callback(self._take)
        return task

    def _take(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.deliver(task.result())
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Pass an error to the receiver."""
        self._give_up = None
        self._failed(error)

    def cancel(self) -> None:
        """End the work, if it has not ended: nothing is delivered any more."""
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result in a coroutine; a cancelled wait ends the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def fail(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        self.then(settle, fail)
        try:
            return (yield from future.__await__())
        finally:
            self.cancel()


def start_in(tasks: "set[asyncio.Task[None]]", work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task that is in ``tasks`` until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def cancel(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait until they have ended. Their errors are ignored."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, at most ``timeout_s``. Return whether it is set."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
