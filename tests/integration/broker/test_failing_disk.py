"""Full disks, and disks that lose written data: what is reported, and what recovers."""

import asyncio
import os
import resource
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import (
    acknowledged,
    consume_async,
    produce_async,
)
from tests.integration.broker.scripted_controller import ScriptedController
from tests.integration.broker.small_disk import BrokerOnSmallDisk, SmallDisk


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[SmallDisk]:
    made = SmallDisk(tmp_path / "broker-1")
    try:
        await made.mount("2m")
    except OSError as error:
        # Containers often forbid mount namespaces.
        pytest.skip(f"{error} (a limit on file sizes replaces it in test_single_broker.py)")
    yield made
    await made.unmount()


def storage_error(controller: ScriptedController, node: int = 1) -> str | None:
    """As last reported; None before the first report."""
    report = controller.brokers[node].last_report
    return None if report is None else report.storage_error


async def metric(broker: BrokerProcess, name: str) -> float:
    def get() -> str:
        with urllib.request.urlopen(f"http://{broker.ready['metrics']}/metrics") as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(get)).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


async def test_full_disk_keeps_acknowledged_records_and_recovers(
    controller: ScriptedController, start_brokers: StartBrokers, disk: SmallDisk, tmp_path: Path
) -> None:
    def on_disk(*args: Any, **config: Any) -> BrokerOnSmallDisk:
        return BrokerOnSmallDisk(*args, disk=disk, **config)

    [broker] = await start_brokers(1, kind=on_disk, log_segment_bytes=200_000)
    topic_id = await controller.create_topic("big", [(1,)])
    await controller.create_topic("small", [(1,)])
    kept = [b"small-%d" % n for n in range(50)]
    assert await produce_async(broker.listener, "small", kept) == list(range(50))

    values = [b"%06d" % n + bytes(5000) for n in range(600)]  # 3 MB: more than there is room for
    # Batches of one record: some of them fit before the disk is full.
    filling = asyncio.create_task(
        asyncio.to_thread(
            acknowledged, broker.listener, "big", values, timeout_s=90, batch_bytes=6000
        )
    )
    await controller.until(lambda: "big-0" in (storage_error(controller) or ""))
    statuses = controller.brokers[1].statuses
    await controller.until(lambda: statuses[topic_id, 0].error_reason == "StorageError")
    assert "No space left" in statuses[topic_id, 0].error_message
    assert await metric(broker, "tidemark_broker_failing_replicas") >= 1
    assert await metric(broker, "tidemark_broker_storage_failures_total") >= 1
    # The producer retries instead of failing: the error is retriable.
    assert not filling.done()
    # Existing data remains readable; a new topic waits for space.
    assert await consume_async(broker.listener, "small", 50) == list(enumerate(kept))
    late_id = await controller.create_topic("late", [(1,)])

    # Killed on the full disk, it comes back on the full disk.
    await broker.kill()
    await broker.start()
    # The disk is still full.
    assert disk.free_bytes < 100_000
    assert await consume_async(broker.listener, "small", 50) == list(enumerate(kept))
    await controller.until(lambda: "No space left" in (storage_error(controller) or ""))

    # With more space everything that was accepted is written exactly once.
    await disk.resize("16m")
    written = await filling
    assert sorted(value for _, value in written) == values
    await controller.until(lambda: storage_error(controller) == "", timeout_s=60)
    assert await metric(broker, "tidemark_broker_failing_replicas") == 0
    end = max(offset for offset, _ in written) + 1
    # Each acknowledged record is at its offset.
    got = dict(await consume_async(broker.listener, "big", end))
    assert [offset for offset, value in written if got[offset] != value] == []
    await controller.push(late_id)
    assert await produce_async(broker.listener, "late", [b"x"]) == [0]
    assert await broker.stop() == 0


async def fill(disk: SmallDisk) -> None:
    """Fill the disk, as another process would."""
    script = 'cat /dev/zero > "$0/ballast"'
    filling = await asyncio.create_subprocess_exec(
        *disk.enter(), "sh", "-c", script, str(disk.path), stderr=asyncio.subprocess.DEVNULL
    )
    assert await filling.wait() != 0
    assert disk.free_bytes == 0


def refusing(controller: ScriptedController, node: int) -> dict[uuid.UUID, tuple[int, ...]]:
    """The replicas of a broker whose storage refuses, by topic id, as last reported."""
    report = controller.brokers[node].last_report
    assert report is not None
    return {
        failed_replica.topic_id: failed_replica.partitions
        for failed_replica in report.failed_replicas
    }


@pytest.mark.full
@pytest.mark.parametrize("node", [1, 2], ids=["leader", "follower"])
async def test_full_disk_costs_one_broker_its_replicas_and_no_producer_an_acknowledgement(
    controller: ScriptedController, start_brokers: StartBrokers, tmp_path: Path, node: int
) -> None:
    """As specified, a broker whose storage fails leaves the ISR and leads nothing."""
    disk = SmallDisk(tmp_path / f"broker-{node}")
    try:
        await disk.mount("4m")
    except OSError as error:
        pytest.skip(f"{error} (a limit on file sizes replaces it in test_full_disk.py)")

    def on_disk(number: int, *args: Any, **config: Any) -> BrokerProcess:
        if number == node:
            return BrokerOnSmallDisk(number, *args, disk=disk, **config)
        return BrokerProcess(number, *args, **config)

    try:
        brokers = await start_brokers(1, 2, 3, kind=on_disk)
        bootstrap = ",".join(broker.listener for broker in brokers)
        topic_id = await controller.create_topic(
            "flights", [(1, 2, 3)], {"min.insync.replicas": "2"}
        )
        assert await produce_async(bootstrap, "flights", [b"x"] * 10) == list(range(10))
        # Another process fills the disk, so even the first write fails.
        await fill(disk)
        writing = asyncio.create_task(
            asyncio.to_thread(acknowledged, bootstrap, "flights", [bytes(5000)] * 20)
        )
        # The failing replica is reported by topic id and partition.
        await controller.until(lambda: refusing(controller, node) == {topic_id: (0,)})
        others = tuple(value for value in (1, 2, 3) if value != node)
        await controller.change(topic_id, 0, leader=others[0], isr=others)
        # Ten seconds are less than the producer's time-out: another leader has taken over.
        async with asyncio.timeout(10):
            assert len(await writing) == 20

        # It recovers without requests, and rejoins the ISR.
        await disk.resize("64m")
        await controller.until(lambda: not refusing(controller, node), 60)
        await controller.until(lambda: controller.rows[topic_id, 0].isr == (1, 2, 3), 60)
        await controller.change(topic_id, 0, leader=node)
        got = await consume_async(brokers[node - 1].listener, "flights", 30)
        assert [offset for offset, _ in got] == list(range(30))
        for broker in brokers:
            assert await broker.stop() == 0
    finally:
        await disk.unmount()


async def test_leader_whose_disk_lost_records_registers_without_proof(
    controller: ScriptedController, start_brokers: StartBrokers, tmp_path: Path
) -> None:
    class Faulty(BrokerProcess):
        def command(self) -> list[str]:
            program = Path(__file__).with_name("faulty_broker.py")
            # This broker's fdatasync fails while the file exists.
            faults = self.folder / f"faults-{self.node_id}"
            faults.mkdir(exist_ok=True)
            return [sys.executable, str(program), str(faults), *super().command()[3:]]

    one, two = await start_brokers(1, 2, kind=Faulty, log_segment_bytes=100_000)
    topic_id = await controller.create_topic("flights", [(1, 2)], {"min.insync.replicas": "1"})
    values = [b"%06d" % n + bytes(1000) for n in range(60)]
    assert await produce_async(one.listener, "flights", values) == list(range(60))
    # The first registration, to compare identities with the next one.
    first = controller.brokers[1].registration

    fault = tmp_path / "faults-1" / "fdatasync"
    fault.touch()
    for _ in range(2):  # a new segment: a flush is due
        await produce_async(one.listener, "flights", [bytes(60_000)])
    # After a failed fsync the page cache cannot be trusted, so the broker ends its process's
    # session.
    await controller.until(lambda: "cannot be synced" in (storage_error(controller) or ""))
    segment = sorted((one.log_dir / "flights-0").glob("*.log"))[-1]
    # What the failed fsync did not write is missing after a restart.
    os.truncate(segment, 0)  # what the failed fsync did not write
    await controller.until(lambda: len(controller.registrations) == 3)
    fault.unlink()
    again = controller.registrations[-1]
    # -1: no proof of a clean shutdown, so the controller does not trust its log (KIP-966).
    assert again.previous_broker_epoch == -1
    assert again.incarnation_id != first.incarnation_id
    assert again.directory_id == first.directory_id
    assert "the disk lost records" in one.log_text()

    # As for any other replica: out of the ISR, it fetches what it lacks.
    await controller.unfenced(1)
    await controller.change(topic_id, 0, leader=2, isr=(2,))
    await controller.until(lambda: controller.rows[topic_id, 0].isr == (1, 2))
    got = await consume_async(two.listener, "flights", 62)
    assert [value for _, value in got][:60] == values
    for broker in (one, two):
        assert await broker.stop() == 0
    assert logs(one) == logs(two)


def logs(broker: BrokerProcess) -> bytes:
    paths = sorted((broker.log_dir / "flights-0").glob("*.log"))
    return b"".join(path.read_bytes() for path in paths)


async def test_limit_of_open_files_is_raised_and_logged(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A low soft limit, as of many distributions; the hard limit allows more.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        [broker] = await start_brokers(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert f"{hard} open files are allowed, enough for about {hard - 1024} logs" in (
        broker.log_text()
    )
