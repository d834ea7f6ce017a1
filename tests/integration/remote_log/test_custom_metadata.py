"""KIP-917: custom metadata within the limit comes back, above it nothing is recorded."""

import itertools

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_host import TOPIC_ID, TieredHost
from tidemark.metrics import tier_table
from tidemark.tier.metadata import queries
from tidemark.tier.segments.remote_storage_manager import decode_custom_metadata
from tidemark_broker.replication.partition import log_start

LIMIT = "remote.log.metadata.custom.metadata.max.bytes"


async def test_within_the_limit_it_is_recorded(host: TieredHost) -> None:
    host.cluster_config[LIMIT] = "16"
    await host.apply()
    await host.produce(300)
    await host.copied()
    sizes = {
        info.key: info.size_bytes for info in host.tier().segments.list_topic("flights", TOPIC_ID)
    }
    for entry in queries.live_segments(host.head(), {}):
        # The built-in plugin records the bucket (none for a directory) and the size of both
        # objects.
        assert entry.custom_metadata is not None
        stored = sizes[entry.log_key] + sizes[entry.aux_key]
        assert decode_custom_metadata(entry.custom_metadata) == ("", stored, None)


async def test_above_the_limit_copying_stops_and_nothing_is_recorded(
    make_host: MakeHost, host: TieredHost
) -> None:
    # The metadata of this plugin needs more than five bytes.
    host.cluster_config[LIMIT] = "5"
    await host.apply()
    await host.produce(300)
    await host.until(lambda: host.summary.error_reason == "CustomMetadataTooLarge")
    assert LIMIT in host.summary.error_message
    assert host.live() == []
    # The upload itself succeeded, so its objects have to be deleted again.
    await host.until(lambda: not host.objects() and host.head().is_empty)
    counted = host.remote._shared.metrics.values()
    assert (counted[tier_table.COPY_REQUESTS], counted[tier_table.COPY_ERRORS]) == (1, 1)
    # Copying stays stopped, also with a higher limit, and local data stays; expiration continues.
    host.cluster_config[LIMIT] = "128"
    await host.apply()
    await host.produce(100)
    await host.upkeep.apply_retention()
    assert host.partition.log.local_log_start_offset == 0
    log_start.delete_records(host.partition, 50)
    await host.until(lambda: host.head().log_start_offset == 50)
    assert host.summary.error_reason == "CustomMetadataTooLarge"
    # A new leader epoch revives it.
    await host.apply(leader_epoch=2)
    await host.copied()
    assert not host.summary.error_reason
    assert host.live()[0][0] == 50
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(host.live()))
