"""Order of turns while the memory of unfinished requests is used up."""

import asyncio
from collections.abc import Callable

import pytest

from tidemark_broker.net import partial_requests
from tidemark_broker.net.partial_requests import LITTLE_BYTES, FrameReader, UnfinishedFrames

MUCH = 50 * 1024 * 1024


class Line:
    """Readers that record the frames they receive."""

    def __init__(self) -> None:
        self.frames = UnfinishedFrames(1000)
        self.frames.held(1000)
        self.resumed: list[str] = []
        self.ended: list[str] = []

    def reader(self, name: str, address: str = "10.0.0.1") -> FrameReader:
        return FrameReader(address, self._notes(self.resumed, name), self._notes(self.ended, name))

    def _notes(self, notes: list[str], name: str) -> Callable[[], None]:
        return lambda: notes.append(name)

    def may_read(self, reader: FrameReader, missing_bytes: int = LITTLE_BYTES) -> bool:
        return self.frames.may_read(reader, 2 * MUCH, missing_bytes)


async def test_one_that_misses_little_and_one_that_misses_much_are_read() -> None:
    line = Line()
    names = ("little", "much", "later", "more")
    little, much, later, more = (line.reader(name) for name in names)
    assert line.may_read(little)
    assert line.may_read(much, MUCH)
    assert not line.may_read(later)
    assert not line.may_read(more, MUCH)
    assert line.may_read(little)  # its turn lasts
    line.frames.left(little)
    await asyncio.sleep(0)
    assert line.resumed == ["later"]
    line.frames.left(much)
    await asyncio.sleep(0)
    assert line.resumed == ["later", "more"]


async def test_addresses_take_turns_with_the_smallest_rest_or_the_longest_wait() -> None:
    line = Line()
    readers = {
        name: line.reader(name, address)
        for name, address in {"a1": "a", "a2": "a", "a3": "a", "a4": "a", "b1": "b"}.items()
    }
    missing = {"a1": 5, "a2": 100, "a3": 50, "a4": 70, "b1": 1000}
    for name, reader in readers.items():
        assert line.may_read(reader, missing[name]) == (name == "a1")
    for name in ("a1", "b1", "a3", "a2"):
        line.frames.left(readers[name])
        await asyncio.sleep(0)
    assert line.resumed == ["b1", "a3", "a2", "a4"]


async def test_new_addresses_do_not_overtake_others_for_ever() -> None:
    line = Line()
    first = line.reader("first", "a")
    assert line.may_read(first)
    good = [line.reader("good", "g") for _ in range(3)]
    for item in good:
        assert not line.may_read(item)
    readers = [first, *good]
    for number in range(8):
        readers.append(line.reader("new", f"n{number}"))
        line.may_read(readers[-1])
        line.frames.left(next(reader for reader in readers if line.frames.has_turn(reader)))
        await asyncio.sleep(0)
    assert line.resumed.count("good") == 3


async def test_all_continue_once_there_is_room() -> None:
    line = Line()
    readers = [line.reader(str(number)) for number in range(4)]
    assert [line.may_read(reader) for reader in readers] == [True, False, False, False]
    line.frames.held(-1)
    assert line.resumed == ["1", "2", "3"]


async def test_a_stuck_reader_is_closed_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_requests, "TURN_S", 0.001)
    monkeypatch.setattr(partial_requests, "TURN_BYTES_PER_S", 10**12)
    line = Line()
    slow, other = line.reader("slow"), line.reader("other")
    assert line.may_read(slow)
    await asyncio.sleep(0.02)
    assert line.ended == []
    assert not line.may_read(other)
    await asyncio.sleep(0.02)
    assert line.ended == ["slow"]
    line.frames.left(slow)
    await asyncio.sleep(0)
    assert line.resumed == ["other"]


async def test_slow_progress_extends_the_time_limit_to_a_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_requests, "TURN_S", 0.005)
    monkeypatch.setattr(partial_requests, "TURN_BYTES_PER_S", 10**12)
    monkeypatch.setattr(partial_requests, "RENEWALS_MAX", 2)
    line = Line()
    slow, other = line.reader("slow"), line.reader("other")
    missing = MUCH
    assert line.may_read(slow, missing)
    assert not line.may_read(other, missing)
    renewals = []
    while not line.ended:
        missing -= partial_requests.RENEWAL_BYTES
        assert line.may_read(slow, missing)
        renewals.append(line.frames._much._renewals)
        await asyncio.sleep(0.001)
    assert max(renewals) == 2


async def test_a_reader_that_left_the_queue_is_not_called() -> None:
    line = Line()
    first, second, third = (line.reader(name) for name in ("1", "2", "3"))
    for item in (first, second, third):
        line.may_read(item)
    line.frames.left(second)
    line.frames.left(first)
    await asyncio.sleep(0)
    assert line.resumed == ["3"]
