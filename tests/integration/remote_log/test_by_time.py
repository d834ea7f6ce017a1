"""Look-ups by time while segments move to the tier: nothing falls between the two."""

import asyncio
import threading

from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tests.integration.remote_log.watched_store import watched_leader
from tidemark_broker.replication.partition import reads


async def test_what_moves_to_the_tier_meanwhile_is_found(host: TieredHost) -> None:
    """The tier is asked with what it held before; by the time it answers, the local part begins
    later. A RecordDeletion would freeze the wrong offset and delete too much."""
    may_read, may_upload = threading.Event(), threading.Event()
    may_upload.set()
    reading: list[str] = []

    def before(name: str, key: str) -> None:
        if name == "get_range" and key.endswith(".log"):
            reading.append(key)
            assert may_read.wait(20)
        if name in ("put_stream", "put") and key.startswith("data/"):
            assert may_upload.wait(20)

    await watched_leader(host, before)
    await host.produce(200)
    await host.copied()
    await host.upkeep.apply_retention()
    partition, log = host.partition, host.partition.log
    assert log.local_log_start_offset > 100
    may_upload.clear()
    await host.produce(300)
    deadline_s = asyncio.get_running_loop().time() + 15
    consumers = [  # they keep the threads that read busy
        asyncio.create_task(host.remote.read(partition, offset, 3000, deadline_s))
        for offset in (0, 60)
    ]
    await host.until(lambda: len(reading) >= 2)
    asked = asyncio.create_task(reads.list_offset(partition, NOW_MS + 230))
    await asyncio.sleep(0.1)
    assert not asked.done()
    may_upload.set()
    await host.copied()
    await host.upkeep.apply_retention()
    assert log.local_log_start_offset > 230
    may_read.set()
    found = await asked
    await asyncio.gather(*consumers)
    assert (int(found.error), found.offset) == (0, 230)
