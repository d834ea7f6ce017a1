"""Records deleted by their broker for an export that knows no Kubernetes API."""

import asyncio
import uuid

import pytest

from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tidemark.kafka_client.access import KafkaAccess
from tidemark.log_lineage import ReadPosition
from tidemark_pipeline.errors import DependencyUnavailable, ExportError
from tidemark_pipeline.export.record_deletion import BrokerDeletions


@pytest.fixture
async def deletions(host: TieredHost) -> BrokerDeletions:
    await host.listen()
    await host.apply()
    await host.produce(40)
    return BrokerDeletions(KafkaAccess((f"127.0.0.1:{host.clients.port}",)))


async def test_repeated_deletion_is_acknowledged_once_records_are_deleted(
    host: TieredHost, deletions: BrokerDeletions
) -> None:
    # The second call is that of a job that was killed after the deletion and before it recorded it.
    for _ in range(2):  # as of a job that has ended before it could tell
        await asyncio.to_thread(deletions.delete, TOPIC, str(TOPIC_ID), {0: ReadPosition(17)})
        assert host.partition.log.log_start_offset == 17


async def test_offsets_beyond_the_log_and_other_topics_are_refused(
    host: TieredHost, deletions: BrokerDeletions
) -> None:
    # The log ends at 40, so 41 was never written: deleting up to it would lose later records.
    with pytest.raises(ExportError, match="offset_out_of_range"):
        await asyncio.to_thread(deletions.delete, TOPIC, str(TOPIC_ID), {0: ReadPosition(41)})
    # A recreated topic has another id; its records were never exported.
    for topic, topic_id in ((TOPIC, str(uuid.uuid4())), (TOPIC, ""), ("none", str(TOPIC_ID))):
        with pytest.raises(ExportError, match="no longer the one that was exported"):
            await asyncio.to_thread(deletions.delete, topic, topic_id, {0: ReadPosition(5)})
    assert host.partition.log.log_start_offset == 0


async def test_deletion_for_an_older_leader_epoch_deletes_nothing(
    host: TieredHost, deletions: BrokerDeletions
) -> None:
    epoch = host.partition.leader_epoch
    # The export read its offsets in an older leader epoch; after an unclean election the same
    # offsets may have other records.
    with pytest.raises(ExportError, match=r"from offset 0 up to 17 .*Nothing is deleted"):
        await asyncio.to_thread(
            deletions.delete, TOPIC, str(TOPIC_ID), {0: ReadPosition(17, epoch - 1)}
        )
    assert host.partition.log.log_start_offset == 0
    await asyncio.to_thread(deletions.delete, TOPIC, str(TOPIC_ID), {0: ReadPosition(17, epoch)})
    assert host.partition.log.log_start_offset == 17


async def test_next_run_retries_brokers_that_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Port 1 refuses connections; one attempt is enough to give up.
    monkeypatch.setattr("tidemark.kafka_client.blocking_client._TRIES_MAX", 1)
    with pytest.raises(DependencyUnavailable, match="not deleted yet"):
        await asyncio.to_thread(
            BrokerDeletions(KafkaAccess(("127.0.0.1:1",))).delete,
            TOPIC,
            str(TOPIC_ID),
            {0: ReadPosition(5)},
        )
