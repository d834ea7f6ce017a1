"""Long operations must not delay short ones: claims and commits beside mass deletion."""

from dataclasses import replace

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.conftest import MakeHost
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.partition import log_start


async def test_copies_and_claims_continue_while_every_deletion_hangs(make_host: MakeHost) -> None:
    """Deletions of two partitions block both expiration threads; partition 2 is unaffected."""
    host = make_host()
    for number in (1, 2):
        host.rows[number] = host.new_row(number)
    await host.apply()
    for number in (0, 1, 2):
        await host.produce(300, number=number)
        await host.copied(number=number)
    with blocking(host, "deletions") as storage:
        # Partitions 0 and 1 block both threads of the expiration pool in the store.
        for number in (0, 1):
            log_start.delete_records(host.at(number), 200)
        # The third component of an object key is its partition.
        await host.until(lambda: len({entry.key.split("/")[2] for entry in storage.begun}) == 2)
        assert _all_busy(host.remote)

        # Copies of partition 2 have a pool of their own.
        await host.produce(300, number=2)
        await host.copied(number=2)
        # So do claims: a new leader epoch must not wait for a deletion.
        host.rows[2] = replace(host.rows[2], leader_epoch=2, partition_epoch=2)
        await host.apply()
        tier = host.tier()
        await host.until(lambda: tier.manifests.load(host.topic.topic_id, 2).head.leader_epoch == 2)
        assert _all_busy(host.remote)
    # The blocked deletions have been released and complete.
    await host.until(lambda: not host.remote.summary(host.at(0)).remaining_segments)


def _all_busy(remote: RemoteLogManager) -> bool:
    return not remote._shared.pools.expiration.idle_threads
