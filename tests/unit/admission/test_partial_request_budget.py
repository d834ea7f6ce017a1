"""Connections with incomplete requests while the memory for them is used up."""

import asyncio
from collections.abc import Callable

import pytest

from tidemark_broker.admission import request_memory
from tidemark_broker.admission.request_memory import LITTLE_BYTES, FrameReader, PartialRequestBudget

MUCH = 50 * 1024 * 1024


class FullBudget:
    """Queue without free memory, and readers that record when they are resumed or ended."""

    def __init__(self) -> None:
        self.frames = PartialRequestBudget(1000)
        self.frames.add(1000)
        self.resumed: list[str] = []
        self.ended: list[str] = []

    def reader(self, name: str, address: str = "10.0.0.1") -> FrameReader:
        return FrameReader(address, self._notes(self.resumed, name), self._notes(self.ended, name))

    def _notes(self, notes: list[str], name: str) -> Callable[[], None]:
        return lambda: notes.append(name)

    def may_read(self, reader: FrameReader, missing_bytes: int = LITTLE_BYTES) -> bool:
        return self.frames.may_read(reader, 2 * MUCH, missing_bytes)


async def test_one_small_and_one_large_request_are_read_at_a_time() -> None:
    queue = FullBudget()
    names = ("little", "much", "later", "more")
    little, much, later, more = (queue.reader(name) for name in names)
    # There is one turn for requests that miss few bytes and one for requests that miss many.
    assert queue.may_read(little)
    assert queue.may_read(much, MUCH)
    assert not queue.may_read(later)
    assert not queue.may_read(more, MUCH)
    assert queue.may_read(little)  # its turn continues
    queue.frames.remove(little)
    await asyncio.sleep(0)
    assert queue.resumed == ["later"]
    queue.frames.remove(much)
    await asyncio.sleep(0)
    assert queue.resumed == ["later", "more"]


async def test_addresses_take_turns_and_the_smallest_request_comes_first() -> None:
    queue = FullBudget()
    readers = {
        name: queue.reader(name, address)
        for name, address in {"a1": "a", "a2": "a", "a3": "a", "a4": "a", "b1": "b"}.items()
    }
    missing = {"a1": 5, "a2": 100, "a3": 50, "a4": 70, "b1": 1000}
    for name, reader in readers.items():
        assert queue.may_read(reader, missing[name]) == (name == "a1")
    for name in ("a1", "b1", "a3", "a2"):
        queue.frames.remove(readers[name])
        await asyncio.sleep(0)
    # b is the other address. Of a's requests the one with the fewest missing bytes follows, then
    # the one that has waited longest, in turns.
    assert queue.resumed == ["b1", "a3", "a2", "a4"]


async def test_new_addresses_do_not_starve_others() -> None:
    queue = FullBudget()
    first = queue.reader("first", "a")
    assert queue.may_read(first)
    good = [queue.reader("good", "g") for _ in range(3)]
    for item in good:
        assert not queue.may_read(item)
    readers = [first, *good]
    # A new address arrives with every turn, as from an attacker with many of them.
    for number in range(8):
        readers.append(queue.reader("new", f"n{number}"))
        queue.may_read(readers[-1])
        queue.frames.remove(next(reader for reader in readers if queue.frames.is_current(reader)))
        await asyncio.sleep(0)
    assert queue.resumed.count("good") == 3


async def test_all_readers_continue_once_memory_is_free() -> None:
    queue = FullBudget()
    readers = [queue.reader(str(number)) for number in range(4)]
    assert [queue.may_read(reader) for reader in readers] == [True, False, False, False]
    queue.frames.add(-1)
    assert queue.resumed == ["1", "2", "3"]


async def test_a_stuck_reader_is_closed_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_memory, "READ_S", 0.001)
    monkeypatch.setattr(request_memory, "READ_BYTES_PER_S", 10**12)
    queue = FullBudget()
    slow, other = queue.reader("slow"), queue.reader("other")
    assert queue.may_read(slow)
    await asyncio.sleep(0.02)
    # Its time is over, but nothing waits: there is no reason to close it.
    assert queue.ended == []
    # Now another connection waits for its turn.
    assert not queue.may_read(other)
    await asyncio.sleep(0.02)
    assert queue.ended == ["slow"]
    queue.frames.remove(slow)
    await asyncio.sleep(0)
    assert queue.resumed == ["other"]


async def test_slow_progress_extends_the_time_limit_to_a_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_memory, "READ_S", 0.005)
    monkeypatch.setattr(request_memory, "READ_BYTES_PER_S", 10**12)
    monkeypatch.setattr(request_memory, "EXTENSIONS_MAX", 2)
    queue = FullBudget()
    slow, other = queue.reader("slow"), queue.reader("other")
    missing = MUCH
    assert queue.may_read(slow, missing)
    assert not queue.may_read(other, missing)
    extensions = []
    while not queue.ended:
        # Each step is just enough to extend the time, so only the maximum number of extensions ends
        # it.
        missing -= request_memory.EXTENSION_BYTES
        assert queue.may_read(slow, missing)
        extensions.append(queue.frames._queues[1]._extensions)
        await asyncio.sleep(0.001)
    assert max(extensions) == 2


async def test_a_reader_that_left_the_queue_is_not_called() -> None:
    queue = FullBudget()
    first, second, third = (queue.reader(name) for name in ("1", "2", "3"))
    for item in (first, second, third):
        queue.may_read(item)
    queue.frames.remove(second)
    queue.frames.remove(first)
    await asyncio.sleep(0)
    assert queue.resumed == ["3"]
