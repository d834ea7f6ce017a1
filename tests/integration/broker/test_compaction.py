"""A compacted topic on real brokers: stock clients write and read it while it is compacted, brokers
are killed, and a follower that was away comes back."""

import asyncio
import urllib.request
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.integration.broker.broker_process import StartBrokers
from tests.integration.broker.scripted_controller import ScriptedController

TOPIC = "states"
# Compact as soon as anything is dirty, and drop tombstones at once.
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
KEYS = 50


def write(bootstrap: str, rounds: range, *, idempotent: bool) -> None:
    """Write each key once per round; key 0 is deleted in the last round."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": idempotent,
            # Small batches: compaction empties some of them completely.
            "batch.num.messages": 7,
        }
    )
    for number in rounds:
        for key in range(KEYS):
            value = b"%d of key %d" % (number, key)
            # A null value is a tombstone.
            deletes = key == 0 and number == rounds[-1]
            producer.produce(
                TOPIC, key=b"key-%d" % key, value=None if deletes else value * 10, partition=0
            )
            producer.poll(0)
    assert producer.flush(30) == 0


def read(bootstrap: str) -> list[tuple[int, bytes, bytes | None]]:
    """Return all records in the order in which they are read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(20)
            assert message is not None, f"nothing more after {found[-1:]}"
            error = message.error()
            # The end of the partition is an event of librdkafka, not an error.
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


async def compacted(bootstrap: str, records_max: int) -> list[tuple[int, bytes, bytes | None]]:
    """Return the records once at most ``records_max`` are left."""
    async with asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(read, bootstrap)
            if len(found) <= records_max:
                return found
            await asyncio.sleep(0.2)


def _check(found: list[tuple[int, bytes, bytes | None]], last_round: int) -> None:
    offsets = [offset for offset, _, _ in found]
    # Offsets never change: compaction leaves gaps only.
    assert offsets == sorted(set(offsets))
    last = {key: value for _, key, value in found if value is not None}
    expected = {
        b"key-%d" % key: (b"%d of key %d" % (last_round, key)) * 10 for key in range(1, KEYS)
    }
    assert {key: value for key, value in last.items() if key != b"key-0"} == expected
    # The deleted key has no value, whether its tombstone is still there or not.
    assert next((value for _, key, value in reversed(found) if key == b"key-0"), None) is None


def _log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


async def test_last_value_of_each_key_survives_compaction_and_crashes(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [one, two] = await start_brokers(1, 2, log_cleaner_backoff_ms=100)
    await controller.create_topic(TOPIC, [(1, 2)], config=CONFIG)
    # 40 rounds of 50 keys: without compaction 2,000 records would remain.
    await asyncio.to_thread(write, one.listener, range(20), idempotent=False)
    await asyncio.to_thread(write, one.listener, range(20, 40), idempotent=True)
    _check(await compacted(one.listener, 600), 39)

    # A crash in the middle of cleaning leaves no damage.
    await one.kill()
    await one.start()
    _check(await compacted(one.listener, 600), 39)
    await asyncio.to_thread(write, one.listener, range(40, 60), idempotent=True)
    _check(await compacted(one.listener, 600), 59)

    # Followers compact their own logs.
    folders = [broker.log_dir / f"{TOPIC}-0" for broker in (one, two)]
    async with asyncio.timeout(60):
        while max(map(_log_bytes, folders)) > 100_000:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.2)
    for broker, folder in zip((one, two), folders, strict=True):
        # .swap files are segments whose replacement was not completed.
        assert not list(folder.glob("*.swap"))
        url = f"http://{broker.ready['metrics']}/metrics"
        text = await asyncio.to_thread(lambda url=url: urllib.request.urlopen(url).read().decode())
        assert "tidemark_broker_cleaner_uncleanable_partitions 0.0" in text
        assert "tidemark_broker_cleaner_failures_total 0.0" in text
        assert "compacted" in broker.log_text()
