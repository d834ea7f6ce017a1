"""A real Apache Kafka cluster for tests: three brokers in three racks, with a remote tier that
is a folder (LocalTieredStorage, from Kafka's own tests) and whose tasks look twice a second."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.benchmarks import kafka

R = TypeVar("R")
TIMEOUT_S = 60.0
#: How often brokers copy, expire and delete.
TASKS_MS = 500


def start(folder: Path) -> kafka.ApacheKafka:
    """Raises :class:`~tests.benchmarks.kafka.KafkaMissing`."""
    entries = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": (
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
        ),
        "remote.log.metadata.manager.listener.name": "REPLICATION",
        "rsm.config.dir": str(folder / "tier"),
        "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "remote.log.manager.task.interval.ms": str(TASKS_MS),
        "log.retention.check.interval.ms": str(TASKS_MS),
        "log.initial.task.delay.ms": str(TASKS_MS),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    racks = ("a", "b", "c")
    setting = kafka.Setting(entries=entries, racks=racks, java=kafka.LIGHT)
    return kafka.start(kafka.ensure_jars(), folder, brokers=len(racks), setting=setting)


async def until(look: Callable[[], Awaitable[R]], good: Callable[[R], bool]) -> R:
    """Look again until it is good: brokers hear of everything in their own time. The last look."""
    found = await look()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not good(found):
                await asyncio.sleep(0.05)
                found = await look()
    except TimeoutError:
        raise AssertionError(f"after {TIMEOUT_S:.0f} s: {found}") from None
    return found
