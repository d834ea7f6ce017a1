"""Parts of the control client that need no broker around them."""

import asyncio
from pathlib import Path

import pytest

from tidemark.wire.receiver import Frame
from tidemark_broker.control.client import first_of
from tidemark_broker.control.commands import AT_ONCE, WAITING_MAX, CommandSlots
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.errors import ControllerRefused, NotController, SessionEnded, check
from tidemark_broker.log import StorageError


async def test_the_controller_epoch_is_durable_and_never_decreases(tmp_path: Path) -> None:
    path = tmp_path / "epoch.json"
    epoch = ControllerEpoch(path)
    assert epoch.highest == -1
    assert await epoch.accept(4)
    assert not await epoch.accept(3)
    again = ControllerEpoch(path)
    assert again.highest == 4
    assert again.is_stale(3)
    assert await again.accept(4)
    path.write_text("{}")
    with pytest.raises(StorageError):
        ControllerEpoch(path)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(41, NotController), (77, SessionEnded), (11, SessionEnded), (102, ControllerRefused)],
)
def test_error_codes_end_the_session(code: int, kind: type[SessionEnded]) -> None:
    with pytest.raises(kind):
        check(code, "x")
    check(0, "x")


async def test_the_first_failure_ends_all() -> None:
    cancelled = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        await asyncio.sleep(0)
        raise SessionEnded("over")

    with pytest.raises(SessionEnded, match="over"):
        await first_of(waits(), fails(), waits())
    assert cancelled == [True, True]


async def test_commands_beyond_the_limit_wait_and_beyond_that_are_dropped() -> None:
    done, gate = [], asyncio.Event()

    async def work(frame: Frame) -> None:
        await gate.wait()
        done.append(bytes(frame))

    turns = CommandSlots(work)
    frames = [b"%d" % number for number in range(AT_ONCE + WAITING_MAX)]
    assert all(turns.take(frame) for frame in frames)
    assert not turns.take(b"one more")
    assert turns.take(b"urgent", urgent=True)
    gate.set()
    async with asyncio.timeout(5):
        while len(done) <= len(frames):  # noqa: ASYNC110  they need a few turns of the loop
            await asyncio.sleep(0)
    assert done == [*frames[:AT_ONCE], b"urgent", *frames[AT_ONCE:]]
    assert turns.take(b"again")
    await turns.close()
