"""Limits on what a client may cost a broker: memory stays bounded, and others are served
meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.security.floods import (
    MIB,
    FloodTarget,
    Waits,
    greedy_fetch,
    many_entries,
    patient_fetch,
)

pytestmark = pytest.mark.full

#: Of a broker under any flood.
MEMORY_MIB = 400


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[FloodTarget]:
    async with FloodTarget.start(tmp_path) as started:
        yield started


def served_well(waits: Waits) -> bool:
    """Nearly all within a second: the machine has other things to do, too."""
    return waits.share_within(1.0) >= 0.9 and waits.share_within(10.0) == 1


@pytest.mark.slow
async def test_fetches_with_unread_answers(target: FloodTarget) -> None:
    # Twelve connections of eight requests of 50 MiB each would be 4.8 GiB of answers.
    async with target.attackers(12) as writers:
        for writer in writers:
            writer.write(greedy_fetch() * 8)
        waits, most_mib = await target.watched(8)
    print(most_mib, len(waits.seconds), max(waits.seconds))
    assert most_mib <= MEMORY_MIB
    assert served_well(waits), sorted(waits.seconds)[-5:]


@pytest.mark.slow
async def test_requests_naming_thousands_of_partitions(target: FloodTarget) -> None:
    """Repeatedly, from eight connections: a blocked broker would be fenced."""
    requests = await asyncio.to_thread(many_entries, 19_000)
    # An epoch that changes shows that the broker was fenced and has registered again.
    sessions = [broker.epoch for broker in target.controller.brokers.values()]
    async with target.attackers(8) as writers:
        for writer in writers:
            writer.write(requests * 4)
        waits, most_mib = await target.watched(8)
    print(most_mib, len(waits.seconds), max(waits.seconds))
    assert most_mib <= MEMORY_MIB
    assert served_well(waits), sorted(waits.seconds)[-5:]
    assert [broker.epoch for broker in target.controller.brokers.values()] == sessions
    assert not any(broker.fenced for broker in target.controller.brokers.values())


@pytest.mark.slow
async def test_large_requests_behind_fetches_that_wait(target: FloodTarget) -> None:
    """Seven connections held 634 MiB, and no connection was read any more."""
    # 7 times 95 MiB is more than the memory for requests, and each is behind a fetch that waits.
    async with target.begun(7, patient_fetch(), 95 * MIB):
        waits, most_mib = await target.watched(5, produced_bytes=300_000)
    print(most_mib, len(waits.seconds), max(waits.seconds))
    assert most_mib <= MEMORY_MIB
    assert served_well(waits), sorted(waits.seconds)[-5:]


@pytest.mark.slow
async def test_large_requests_that_never_end(target: FloodTarget) -> None:
    """Forty of 90 MB kept every other above 64 KiB out for a minute."""
    # 40 times 90 MiB. The attackers send all but the last MiB.
    async with target.begun(40, b"", 90 * MIB):
        await asyncio.sleep(1)
        waits, most_mib = await target.watched(5, produced_bytes=300_000)
    print(most_mib, len(waits.seconds), max(waits.seconds))
    assert most_mib <= MEMORY_MIB
    assert served_well(waits), sorted(waits.seconds)[-5:]
