"""Parts of the control client that need no broker around them."""

import asyncio
from pathlib import Path

import pytest

from tidemark.wire.receiver import Frame
from tidemark_broker.control.client import first_of
from tidemark_broker.control.commands import AT_ONCE, WAITING_MAX, CommandSlots
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.session import ControllerRefused, NotController, SessionEnded, check
from tidemark_broker.log import StorageError


async def test_the_controller_epoch_is_durable_and_never_decreases(tmp_path: Path) -> None:
    path = tmp_path / "epoch.json"
    epoch = ControllerEpoch(path)
    assert epoch.highest == -1
    assert await epoch.accept(4)
    assert not await epoch.accept(3)
    # A new process reads the epoch from the file.
    again = ControllerEpoch(path)
    assert again.highest == 4
    assert again.is_stale(3)
    assert await again.accept(4)
    # A damaged file must stop the broker, since it might obey a former controller.
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


async def test_first_failure_cancels_the_other_tasks() -> None:
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


async def test_commands_wait_up_to_a_limit_and_are_then_dropped() -> None:
    done, gate = [], asyncio.Event()

    async def work(frame: Frame) -> None:
        await gate.wait()
        done.append(bytes(frame))

    slots = CommandSlots(work)
    frames = [b"%d" % number for number in range(AT_ONCE + WAITING_MAX)]
    assert all(slots.take(frame) for frame in frames)
    assert not slots.take(b"one more")
    assert slots.take(b"urgent", urgent=True)
    await asyncio.sleep(0)  # commands in the slots and the urgent one begin
    gate.set()
    async with asyncio.timeout(5):
        while len(done) <= len(frames):  # noqa: ASYNC110 - no event marks the end
            await asyncio.sleep(0)
    # The urgent command overtakes the waiting ones, but not the running ones.
    assert done == [*frames[:AT_ONCE], b"urgent", *frames[AT_ONCE:]]
    assert slots.take(b"again")
    await slots.close()
