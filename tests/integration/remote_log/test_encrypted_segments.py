"""Compressed and encrypted segments of a broker: copies, reads, rotation, and a missing key."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.aws import forget_providers
from tests.clouds import KmsServer
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.test_store_faults import all_is_well, copied_before
from tests.integration.remote_log.test_tier_exits import until_reported
from tests.integration.remote_log.test_transactions import batch, send
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TOPIC_ID, VALUE, TieredHost
from tidemark.metrics import tier_table
from tidemark.tier.maintenance.rewrap import rewrap
from tidemark.tier.metadata import queries
from tidemark.tier.segments.remote_storage_manager import stored_log_bytes
from tidemark.tier.stores.aws_kms import COUNTS
from tidemark_broker.replication.remote import RemoteUnavailable

OLD, NEW = (f"k{number}: {'A' * 41}{number}A=\n" for number in (1, 2))
COMPRESSED = {"tidemark.remote.compression": "zstd"}


def configure(host: TieredHost, keys: str) -> None:
    """Give a host the encryption keys of this text. They reach it with the next states."""
    ((kind, fields),) = host.store.items()
    host.store = {kind: {**fields, "encryptionKeys": keys}}


@pytest.mark.parametrize("store", ["directory", "minio"])
async def test_records_are_read_back_from_compressed_and_encrypted_segments(
    make_host: MakeHost, s3: dict[str, Any], store: str
) -> None:
    host = make_host()
    if store == "minio":
        host.store = {"s3": s3}
    configure(host, OLD)
    host.config |= COMPRESSED
    await copied_before(host)
    await all_is_well(host, 300)
    tier = host.tier()
    pages = tier.manifests.pages(TOPIC_ID, 0)
    entries = list(queries.live_segments(host.head(), pages))
    assert all(stored_log_bytes(entry) < 0.4 * entry.size_bytes for entry in entries)
    for entry in entries:
        stored = tier.store.get(entry.log_key).data
        assert len(stored) == stored_log_bytes(entry)
        assert VALUE[:20] not in stored


async def test_segments_of_each_form_are_read_in_one_log(host: TieredHost) -> None:
    """Neither setting applies to segments that are in the tier already."""
    await copied_before(host)
    host.config |= COMPRESSED
    await host.apply()
    await host.produce(100)
    await host.copied()
    configure(host, OLD)
    await host.apply()
    await host.produce(100)
    await host.copied()
    configure(host, NEW + OLD)
    await host.apply()
    await host.produce(100)
    await all_is_well(host, 600)


async def test_missing_key_is_reported_and_recovers_once_it_is_back(host: TieredHost) -> None:
    configure(host, OLD)
    await copied_before(host)
    await host.upkeep.apply_retention()
    end = host.partition.log.local_log_start_offset
    # The administrator replaces the key, and drops the old one too early.
    configure(host, NEW)
    await host.apply()
    await host.until(lambda: not host.remote.status().error)
    with pytest.raises(RemoteUnavailable, match=r"'k1'.*nothing is lost"):
        await host.read_tier(0, end)
    await until_reported(host, "EncryptionKeyMissing", "'k1'", "Add the line")
    # New segments have the new key, and copying continues.
    await host.produce(300)
    await host.copied()
    # The remedy of the message.
    configure(host, NEW + OLD)
    await host.apply()
    await host.until(lambda: not host.remote.status().error)
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    await host.until(lambda: not host.summary.error_reason)
    await all_is_well(host, 600)


@pytest.fixture
def kms_identity(kms: KmsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Access key of the process, whose identity on AWS the requests to KMS have."""
    for name, value in kms.environment.items():
        monkeypatch.setenv(name, value)
    forget_providers()
    yield os.environ["AWS_ACCESS_KEY_ID"]
    kms.deny()
    forget_providers()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("DisabledException", "Enable the key in KMS"),
        ("AccessDeniedException", "Allow the identity kms:Decrypt"),
    ],
)
async def test_key_that_kms_refuses_is_reported_and_recovers(
    host: TieredHost, kms: KmsServer, kms_identity: str, code: str, advice: str
) -> None:
    arn = kms.create_key()
    configure(host, f"k3: {kms.encrypted_key(arn)}\n")
    await copied_before(host)
    await host.upkeep.apply_retention()
    end, errors = host.partition.log.local_log_start_offset, host.gauge(tier_table.KMS_ERRORS)
    if code == "DisabledException":
        kms.call("DisableKey", KeyId=arn)
    else:
        kms.deny(kms_identity)
    # A process requests the key again after some minutes, as a new one does.
    forget_providers()
    await host.produce(300)
    await until_reported(host, "EncryptionKeyUnavailable", arn, code, advice)
    with pytest.raises(RemoteUnavailable, match=f"{code}.*nothing is lost"):
        await host.read_tier(0, end)
    assert host.gauge(tier_table.KMS_ERRORS) > errors
    kms.call("EnableKey", KeyId=arn)
    kms.deny()
    await host.until(lambda: not host.summary.error_reason, 30)
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    await all_is_well(host, 600)


async def test_segments_of_a_secrets_key_get_a_key_of_kms(
    host: TieredHost, kms: KmsServer, kms_identity: str
) -> None:
    """And the other way: neither rotation needs another format."""
    configure(host, OLD)
    await copied_before(host)
    line = f"k3: {kms.encrypted_key(kms.create_key())}\n"
    for keys, alone in ((line + OLD, line), (NEW + line, NEW)):
        configure(host, keys)
        await host.apply()
        await host.until(lambda: not host.remote.status().error)
        requests = COUNTS.requests
        assert rewrap(host.tier()).rewrapped == len(host.live())
        # One request of this process, however many segments there are.
        assert COUNTS.requests - requests <= 1
        configure(host, alone)
        await host.apply()
        await all_is_well(host, 300)
    assert kms_identity


async def test_old_key_is_not_needed_after_a_rotation(host: TieredHost) -> None:
    configure(host, OLD)
    await copied_before(host)
    await host.upkeep.apply_retention()
    end = host.partition.log.local_log_start_offset
    configure(host, NEW + OLD)
    await host.apply()
    report = rewrap(host.tier())
    assert report.rewrapped == len(host.live())
    configure(host, NEW)
    await host.apply()
    await host.until(lambda: not host.remote.status().error)
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    await host.produce(300)
    await all_is_well(host, 600)


async def test_replica_without_a_local_log_starts_from_encrypted_segments(
    cluster: TieredCluster,
) -> None:
    for host in cluster.hosts.values():
        configure(host, OLD)
        host.config |= COMPRESSED
    await cluster.apply()
    leader = cluster.hosts[1]
    await leader.produce(300)
    await leader.copied()
    await leader.upkeep.apply_retention()
    # Producer state and leader epochs at the end of the tier are in an encrypted object.
    await cluster.start(3)
    configure(cluster.hosts[3], OLD)
    await cluster.apply(replicas=(1, 2, 3))
    await cluster.until_in_sync(1, 2, 3)
    replica = cluster.hosts[3].partition
    assert replica.log.local_log_start_offset == leader.partition.log.local_log_start_offset > 0
    assert replica.log.epochs.entries == leader.partition.log.epochs.entries


async def test_replica_starts_without_the_key_of_earlier_segments(cluster: TieredCluster) -> None:
    """Earlier segments are read for retries of producers only, which is best effort."""
    leader = cluster.hosts[1]
    for keys, records in ((OLD, 200), (NEW + OLD, 100)):
        for host in cluster.hosts.values():
            configure(host, keys)
        await cluster.apply()
        await send(leader, batch(records, 0, transactional=False))
        await leader.produce(records)
        await leader.copied()
    await leader.upkeep.apply_retention()
    await cluster.start(3)
    configure(cluster.hosts[3], NEW)
    await cluster.apply(replicas=(1, 2, 3))
    await cluster.until_in_sync(1, 2, 3)
    replica = cluster.hosts[3].partition
    assert replica.log.local_log_start_offset == leader.partition.log.local_log_start_offset > 0
