"""One broker: stock clients through its listener, restarts, commands of the controller."""

import asyncio
import resource
import urllib.request
import uuid
from datetime import timedelta

from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from tests.integration.broker.broker_process import StartBrokers
from tests.integration.broker.kafka_clients import consume_async, produce_async
from tests.integration.broker.scripted_controller import ScriptedController
from tidemark.wire import control


async def test_records_are_readable_after_restarts(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    await controller.create_topic("flights", [(1,)])
    values = [b"value-%d" % n for n in range(500)]
    assert await produce_async(broker.listener, "flights", values[:300]) == list(range(300))

    assert await broker.stop() == 0
    # The first start has no previous epoch.
    assert controller.registrations[0].previous_broker_epoch == -1
    first_epoch = controller.brokers[1].epoch
    await broker.start()
    # A clean shutdown left its epoch as proof (KIP-966).
    assert controller.registrations[-1].previous_broker_epoch == first_epoch
    assert controller.registrations[-1].directory_id == controller.registrations[0].directory_id
    assert await produce_async(broker.listener, "flights", values[300:]) == list(range(300, 500))

    await broker.kill()
    await broker.start()
    # A kill leaves no proof.
    assert controller.registrations[-1].previous_broker_epoch == -1
    got = await consume_async(broker.listener, "flights", 500)
    assert got == list(enumerate(values))


async def test_absence_keeps_a_replica_and_a_tombstone_removes_it(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    kept = await controller.create_topic("kept", [(1,)])
    doomed = await controller.create_topic("doomed", [(1,)])
    await produce_async(broker.listener, "kept", [b"a"])
    # A controller that knows of no topics, as after a partial restore.
    rows, controller.rows = controller.rows, {}
    topics, controller.topics = controller.topics, {}
    await broker.stop()
    await broker.start()
    # A missing row is no removal: only tombstones delete data.
    assert (broker.log_dir / "kept-0").is_dir()
    assert (broker.log_dir / "doomed-0").is_dir()

    controller.rows, controller.topics = rows, topics
    del controller.topics[doomed]
    tombstone = control.Removal(topic_id=doomed, partition=-1, partition_epoch=-1)
    # A tombstone for a topic that this broker never had is no error.
    stranger = control.Removal(topic_id=uuid.uuid4(), partition=-1, partition_epoch=-1)
    answers = await controller.push(kept, removals=(tombstone, stranger))
    assert answers[1].errors == ()
    assert not (broker.log_dir / "doomed-0").exists()
    assert (await consume_async(broker.listener, "kept", 1)) == [(0, b"a")]


async def test_older_controller_is_refused(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    controller.epoch = 5
    answers = await controller.push()
    assert answers[1].error_code == 0
    controller.epoch = 4
    answers = await controller.push()
    # 11 is STALE_CONTROLLER_EPOCH.
    assert answers[1].error_code == 11
    await broker.kill()
    await broker.launch()
    # The epoch survives the crash.
    await controller.until(lambda: controller.registrations[-1].highest_controller_epoch == 5)


async def test_health_metrics_and_reports(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    topic_id = await controller.create_topic("flights", [(1,)])
    await produce_async(broker.listener, "flights", [b"x"] * 10)
    status = controller.brokers[1].statuses

    await controller.until(
        lambda: (topic_id, 0) in status and status[topic_id, 0].high_watermark == 10
    )
    text = await asyncio.to_thread(_get, f"http://{broker.ready['metrics']}/metrics")
    assert "tidemark_broker_leaders 1.0" in text
    assert await asyncio.to_thread(_get, f"http://{broker.ready['metrics']}/healthz") == "ok\n"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


async def test_full_disk_is_reported_and_recovers(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    topic_id = await controller.create_topic("flights", [(1,), (1,)])
    assert await produce_async(broker.listener, "flights", [b"x" * 1000] * 50) == list(range(50))
    # No file of this process may grow beyond what the log has: as on a full disk, writes fail.
    limit = (broker.log_dir / "flights-0" / f"{0:020d}.log").stat().st_size
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    waiting = asyncio.create_task(produce_async(broker.listener, "flights", [b"y" * 1000] * 20))
    await controller.until(
        lambda: (
            (report := controller.brokers[1].last_report) is not None
            and "flights-0" in report.storage_error
        )
    )
    statuses = controller.brokers[1].statuses
    await controller.until(lambda: statuses[topic_id, 0].error_reason == "StorageError")
    # The other partition has room below the limit.
    assert not waiting.done()
    assert await produce_async(broker.listener, "flights", [b"z"] * 5, 1) == list(range(5))

    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert await waiting == list(range(50, 70))
    await controller.until(
        lambda: (
            (report := controller.brokers[1].last_report) is not None and report.storage_error == ""
        )
    )
    got = await consume_async(broker.listener, "flights", 70)
    assert [value[:1] for _, value in got] == [b"x"] * 50 + [b"y"] * 20


async def test_controller_sends_kafka_requests_over_the_command_connection(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    await controller.create_topic("flights", [(1,)])
    await produce_async(broker.listener, "flights", [b"x"] * 30)
    # Roles are reversed on the command connection: the controller is the client.
    commands = controller.brokers[1].commands
    assert commands is not None
    answer = await commands.request(
        DeleteRecordsRequest(
            topics=(
                DeleteRecordsTopic(
                    name=TopicName("flights"),
                    partitions=(DeleteRecordsPartition(partition_index=i32(0), offset=i64(12)),),
                ),
            ),
            timeout=i32Timedelta.parse(timedelta(seconds=5)),
        ),
        DeleteRecordsResponse,
        10.0,
    )
    assert answer.topics[0].partitions[0].low_watermark == 12


async def test_disablement_without_a_tier_is_not_acknowledged(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    await start_brokers(1)
    topic_id = await controller.create_topic("flights", [(1,)])
    commands = controller.brokers[1].commands
    assert commands is not None
    answer = await commands.request(
        control.DisableRemoteTopicRequest(
            controller_epoch=controller.epoch,
            topic_id=topic_id,
            tiered_epoch=1,
            disable_policy=0,
            partitions=(0, 7),
            timeout_ms=500,
        ),
        control.DisableRemoteTopicResponse,
        10.0,
    )
    # 7 is REQUEST_TIMED_OUT, 3 is UNKNOWN_TOPIC_OR_PARTITION.
    assert [(result.partition, result.error_code) for result in answer.results] == [(0, 7), (7, 3)]
