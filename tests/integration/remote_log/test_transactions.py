"""Transactions and producers whose records are in the tier."""

import time

from tests.integration.remote_log.test_prefix import UNCLEAN
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, VALUE, TieredHost
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker
from tidemark_broker.log import VerificationGuard, appending, flushing
from tidemark_broker.replication.partition import Role, consumer_reads, produce


def batch(producer: int, sequence: int, *, transactional: bool) -> bytes:
    return build_batch(
        [Record(b"k", VALUE, (), NOW_MS)] * 5,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transactional,
    )


async def send(host: TieredHost, data: bytes) -> int:
    partition = host.partition
    guard: VerificationGuard | None = appending.begin_verification(
        partition.log, data, NOW_MS, supports_epoch_bump=False
    )
    sent = await produce.append(partition, data, acks=-1, timeout_ms=5000, guard=guard)
    assert not sent.error, sent
    return sent.base_offset


async def abort(host: TieredHost, producer: int) -> int:
    return await finish(host, producer, commit=False)


async def finish(host: TieredHost, producer: int, *, commit: bool) -> int:
    begun = produce.begin_marker(
        host.partition, EndMarker(is_commit=commit, coordinator_epoch=1), producer_id=producer,
        producer_epoch=0, transaction_version=1,
    )  # fmt: skip
    sent = await produce.acknowledged(host.partition, begun, acks=-1, timeout_ms=5000)
    assert not sent.error, sent
    return sent.base_offset


async def leader_alone(cluster: TieredCluster) -> tuple[TieredHost, int]:
    """Return leader and marker offset. Producer 1's transaction begins in the first segment and is
    aborted some segments later; producer 2 is idempotent. All but the active segment is only in the
    tier."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    assert await send(leader, batch(1, 0, transactional=True)) == 0
    assert await send(leader, batch(2, 0, transactional=False)) == 5
    await leader.produce(200)
    marker = await abort(leader, 1)
    await leader.produce(200)
    await leader.copied()
    await leader.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset > marker
    return leader, marker


async def aborted_in_the_tier(host: TieredHost, offset: int) -> list[tuple[int, int]]:
    found = await host.remote.read(host.partition, offset, 1 << 20, time.monotonic() + 10)
    return [(item.producer_id, item.first_offset) for item in found.aborted]


async def test_open_transaction_is_not_copied(cluster: TieredCluster) -> None:
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(100)
    begun = await send(leader, batch(1, 0, transactional=True))
    await leader.produce(200)
    await leader.until(lambda: leader.partition.log.highest_remote_offset >= 0)
    assert leader.partition.log.last_stable_offset == begun
    # Only stable records are copied: the last stable offset bounds the tier, as in Kafka (KIP-405).
    assert leader.partition.log.highest_remote_offset < begun
    await abort(leader, 1)
    await leader.copied()
    # The marker moves the last stable offset, so copying continues.
    assert leader.partition.log.highest_remote_offset > begun


async def test_tier_reads_return_aborted_transactions(cluster: TieredCluster) -> None:
    leader, marker = await leader_alone(cluster)
    # The index of aborted transactions of all segments in the range is read.
    assert await aborted_in_the_tier(leader, 0) == [(1, 0)]
    # Behind the marker the transaction has no records any more.
    assert await aborted_in_the_tier(leader, marker + 5) == []


async def test_follower_bootstrapped_from_the_tier_has_its_producers(
    cluster: TieredCluster,
) -> None:
    leader, _ = await leader_alone(cluster)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    new = cluster.hosts[3].partition
    # The producer snapshot of the tier has producers whose batches are not local.
    assert sorted(new.log.active_producers()) == sorted(leader.partition.log.active_producers())
    await cluster.stop(1)
    await cluster.apply(3, leader=3, leader_epoch=3, replicas=(3,), isr=(3,))
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.is_leader)
    # A retry with the same sequence is answered with the first offset, not appended retried_offset.
    assert await send(host, batch(2, 0, transactional=False)) == 5  # it comes retried_offset
    assert await aborted_in_the_tier(host, 0) == [(1, 0)]


async def test_follower_bootstrapped_from_the_tier_deduplicates_five_batches(
    cluster: TieredCluster,
) -> None:
    """Though the producer snapshot in the tier has only the last one, and they are in segments of
    their own."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    # Seven batches; the fifth is followed by a new segment.
    offsets = []
    for sequence in range(0, 35, 5):
        offsets.append(await send(leader, batch(2, sequence, transactional=False)))
        if sequence == 20:
            await leader.upkeep.flush()
            appending.roll(leader.partition.log, NOW_MS)
    await leader.produce(200)
    await leader.copied()
    await leader.upkeep.apply_retention()
    # All batches of the producer are in the tier only.
    assert leader.partition.log.local_log_start_offset > offsets[-1]
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    await cluster.stop(1)
    await cluster.apply(3, leader=3, leader_epoch=3, replicas=(3,), isr=(3,))
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.log.local_log_start_offset > offsets[-1]
    end = host.partition.log.next_offset
    # Sequences 10 to 30 are the last five batches (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
    for sequence in range(10, 35, 5):
        retried_offset = await send(host, batch(2, sequence, transactional=False))
        assert retried_offset == offsets[sequence // 5]
    # All of them were duplicates: nothing was appended.
    assert host.partition.log.next_offset == end


async def test_damaged_transaction_index_does_not_enter_the_tier(cluster: TieredCluster) -> None:
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    # The first one is open, so nothing behind it is copied. The last one is committed.
    for producer in (1, 2, 3):
        assert await send(leader, batch(producer, 0, transactional=True)) == producer * 5 - 5
    await leader.produce(200)
    first_marker = await finish(leader, 2, commit=False)
    await leader.produce(200)
    await finish(leader, 3, commit=True)
    log = leader.partition.log
    last_marker = await finish(leader, 1, commit=False)
    # All files are damaged before the next task of the tier.
    appending.roll(log, NOW_MS)
    flushing.flush(log)
    for path in log.directory.glob("*.txnindex"):
        data = bytearray(path.read_bytes())
        # The last byte of the producer id: readers would skip another producer's records.
        data[9] ^= 8
        path.write_bytes(data)
    await leader.until(lambda: log.highest_remote_offset == last_marker)
    assert await aborted_in_the_tier(leader, 0) == [(2, 5), (1, 0)]
    head, segments = leader.head(), leader.tier().segments
    lists = {segments.fetch_aux(entry).aborted.transactions for entry in head.entries}
    aborted = (AbortedTxn(2, 5, first_marker, 0), AbortedTxn(1, 0, last_marker, last_marker + 1))
    # Equal in each segment that the transaction touches, as merges expect.
    assert lists == {aborted, aborted[1:]}


async def test_lost_abort_marker_does_not_block_the_last_stable_offset(
    cluster: TieredCluster,
) -> None:
    """Records of the tier were stable when they were copied."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(10)
    # The transaction begins at offset 10 and is aborted; the marker is still in the active segment.
    assert await send(leader, batch(1, 0, transactional=True)) == 10
    await leader.produce(100)
    await abort(leader, 1)
    await leader.copied()
    log = leader.partition.log
    await cluster.start(3)
    await cluster.stop(1)
    # Broker 3 takes over from the tier, whose end is below the marker.
    await cluster.apply(3, **UNCLEAN)
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == log.highest_remote_offset + 1
    # Without the marker the transaction would hold the last stable offset back forever.
    assert host.partition.log.last_stable_offset == host.partition.next_offset
    found = await consumer_reads.list_offset(
        host.partition, consumer_reads.LATEST, read_committed=True
    )
    assert found.offset == host.partition.next_offset
