"""Work that several threads request at the same time runs once for all of them."""

import threading
import time

import pytest

from tidemark_broker.lock_order import LockRank
from tidemark_broker.log.files import SharedWork


class GatedWork:
    """Work that waits at a gate and may fail."""

    def __init__(self) -> None:
        self.runs = 0
        self.running = 0
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.fails_at = -1

    def __call__(self) -> None:
        self.running += 1
        assert self.running == 1
        self.runs += 1
        self.begun.set()
        assert self.gate.wait(5)
        self.running -= 1
        if self.runs == self.fails_at:
            raise OSError("no")


def _threads(work: SharedWork, count: int, failed: list[BaseException]) -> list[threading.Thread]:
    def run() -> None:
        try:
            work.run()
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def _all_wait(shared: SharedWork, requests: int) -> None:
    deadline_s = time.monotonic() + 5
    while shared._requests < requests:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize(("fails_at", "runs"), [(-1, 2), (1, 2), (2, 3)])
def test_callers_during_a_run_share_the_next_run(fails_at: int, runs: int) -> None:
    work, failed = GatedWork(), list[BaseException]()
    work.fails_at = fails_at
    shared = SharedWork(work, LockRank.CHECKPOINTS)
    first = _threads(shared, 1, failed)
    assert work.begun.wait(5)
    # Seven threads request the work during the first run. One second run serves all of them, and
    # a third one retries a failure.
    waiting = _threads(shared, 7, failed)
    _all_wait(shared, 8)
    work.gate.set()
    for thread in first + waiting:
        thread.join(5)
    assert work.runs == runs
    assert len(failed) == (fails_at > 0)  # only the caller that ran it sees the failure


def test_a_failed_run_is_repeated_by_the_next_caller() -> None:
    work = GatedWork()
    work.gate.set()
    work.fails_at = 1
    shared = SharedWork(work, LockRank.CHECKPOINTS)
    with pytest.raises(OSError, match="no"):
        shared.run()
    shared.run()
    assert work.runs == 2
