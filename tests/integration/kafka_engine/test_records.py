"""RecordDeletions (KIP-107) on Apache Kafka: the same objects, the same frozen offsets."""

import datetime

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.producing import SMALL, offset, produce
from tests.integration.kafka_engine.waiting import until
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.values import EARLIEST, LATEST
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC, Json


async def finished(world: KafkaWorld, name: str, status: str, reason: str) -> Json:
    await world.condition(RECORD_DELETION, name, "Succeeded", status, reason)
    return (await world.get(RECORD_DELETION, name))["status"]  # type: ignore[no-any-return]


async def test_records_are_deleted_by_offset_and_time_and_to_the_end(
    world: KafkaWorld, admin: Admin, bootstrap: tuple[str, ...], name: str
) -> None:
    await world.start_operator()
    await world.create_topic(name, 2, 3, config=SMALL)
    await world.ready(name)
    await produce(bootstrap, name, 0, b"0", b"1", b"2")
    between = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    await produce(bootstrap, name, 0, b"3", b"4")
    await produce(bootstrap, name, 1, b"0", b"1")
    await until(lambda: offset(admin, name, 0, LATEST), lambda found: found == 5)
    await until(lambda: offset(admin, name, 1, LATEST), lambda found: found == 2)

    await world.create_deletion("dry", name, all={"beforeOffset": -1}, dryRun=True)
    assert (await finished(world, "dry", "True", "DryRun"))["records"] == 7
    assert await offset(admin, name, 0, EARLIEST) == 0

    await world.create_deletion("one", name, partitions=[{"partition": 0, "beforeOffset": 2}])
    done = await finished(world, "one", "True", "Deleted")
    assert [(each["partition"], each["offset"], each["records"]) for each in done["resolved"]] == [
        (0, 2, 2)
    ]
    assert done["partitions"] == [{"partition": 0, "lowWatermark": 2}]
    assert await offset(admin, name, 0, EARLIEST) == 2

    before = {"partition": 0, "beforeTime": between}
    await world.create_deletion("time", name, partitions=[before])
    assert (await finished(world, "time", "True", "Deleted"))["resolved"][0]["offset"] in (2, 3)

    await world.create_deletion("all", name, all={"beforeOffset": -1})
    done = await finished(world, "all", "True", "Deleted")
    assert [each["lowWatermark"] for each in done["partitions"]] == [5, 2]
    await world.create_deletion("beyond", name, partitions=[{"partition": 1, "beforeOffset": 9}])
    failed = await finished(world, "beyond", "False", "PartitionsFailed")
    assert failed["partitions"][0]["error"].startswith("OFFSET_OUT_OF_RANGE")
    assert await offset(admin, name, 1, EARLIEST) == 2


async def test_a_compacted_topic_is_refused_in_a_dry_run_too(world: KafkaWorld, name: str) -> None:
    await world.start_operator()
    await world.create_topic(name, config={"cleanup.policy": "compact"})
    await world.condition(TOPIC, name, "Ready", "True")
    await world.create_deletion("dry", name, all={"beforeOffset": -1}, dryRun=True)
    told = await world.condition(RECORD_DELETION, "dry", "Succeeded", "False", "PartitionsFailed")
    assert "POLICY_VIOLATION" in told["message"]
