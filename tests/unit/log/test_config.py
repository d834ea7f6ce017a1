"""Topic configuration with Kafka's keys and defaults."""

import pytest

from tidemark.records.batch import TimestampType
from tidemark_broker.log import LogConfig


def test_defaults_equal_kafkas() -> None:
    config = LogConfig.of({})
    assert config == LogConfig()
    assert (config.segment_bytes, config.max_message_bytes) == (1_073_741_824, 1_048_588)
    assert (config.retention_ms, config.retention_bytes) == (604_800_000, -1)
    # local.retention.* default to -2: the value of retention.* applies.
    assert config.effective_local_retention_ms == 604_800_000
    assert config.effective_local_retention_bytes == -1
    assert config.deletes


def test_keys_are_read_and_unknown_ones_ignored() -> None:
    config = LogConfig.of(
        {
            "segment.bytes": "1048576",
            "local.retention.ms": "5",
            "local.retention.bytes": "6",
            # Kafka's ConfigDef trims spaces and ignores the case of booleans.
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "unclean.leader.election.enable": "TRUE",
            "min.insync.replicas": " 2 ",
            "compression.type": "producer",
        }
    )
    assert (config.segment_bytes, config.min_insync_replicas) == (1048576, 2)
    assert config.effective_local_retention_ms == 5
    assert config.effective_local_retention_bytes == 6
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.unclean_leader_election_enable


def test_delay_of_copies_follows_local_retention() -> None:
    """KIP-1241: -1 is the local retention, and a 0 in one of both keys permits every copy."""
    assert not LogConfig.of({}).delays_copies
    delayed = LogConfig.of({"remote.copy.lag.ms": "-1", "local.retention.ms": "5"})
    assert (delayed.delays_copies, delayed.effective_copy_lag_ms) == (True, 5)
    assert delayed.effective_copy_lag_bytes == -1
    by_bytes = LogConfig.of(
        {"remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": "-1", "retention.bytes": "7"}
    )
    assert by_bytes.effective_copy_lag_bytes == 7
    assert not LogConfig.of({"remote.copy.lag.ms": "9", "remote.copy.lag.bytes": "0"}).delays_copies


def test_maximum_lag_closes_segments_of_a_tiered_topic_at_its_half() -> None:
    limits = {
        "tidemark.remote.copy.max.lag.ms": "10000",
        "tidemark.remote.copy.max.lag.bytes": "4194304",
    }
    tiered = LogConfig.of({**limits, "remote.storage.enable": "true"})
    assert (tiered.limits_lag, tiered.early_close_ms) == (True, 5000)
    assert tiered.effective_segment_bytes == 2097152
    # segment.bytes stays the limit if it is lower, and of a topic without a tier.
    small = LogConfig.of({**limits, "remote.storage.enable": "true", "segment.bytes": "1048576"})
    assert small.effective_segment_bytes == 1048576
    assert LogConfig.of(limits).effective_segment_bytes == 1_073_741_824
    assert not LogConfig.of({"remote.storage.enable": "true"}).limits_lag


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment.bytes", "1G"),
        ("message.timestamp.type", "x"),
        ("unclean.leader.election.enable", "1"),
    ],
)
def test_the_error_for_an_invalid_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=key):
        LogConfig.of({key: value})
