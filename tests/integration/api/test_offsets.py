"""ListOffsets and OffsetForLeaderEpoch in every version."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka

FIRST_MS = 1_700_000_000_000


async def _fill(broker: ApiBroker) -> None:
    await broker.create("t", leader_epoch=2)
    # Two records per batch, 100 ms between the batches.
    for number in range(3):
        records = kafka.batch(b"x", b"y", timestamp_ms=FIRST_MS + 100 * number)
        await broker.ask(kafka.produce(9, "t", records), kafka.answer_type(0, 9))


async def _offset(broker: ApiBroker, version: int, timestamp: int, **part: Any) -> Any:
    answer: Any = await broker.ask(
        kafka.list_offsets(version, "t", timestamp, **part), kafka.answer_type(2, version)
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets_in_every_version(broker: ApiBroker, version: int) -> None:
    await _fill(broker)
    assert (await _offset(broker, version, -1)).offset == 6
    assert (await _offset(broker, version, -2)).offset == 0
    # The first record at or after the timestamp, with its own timestamp.
    found = await _offset(broker, version, FIRST_MS + 101)
    assert (found.error_code, found.offset, found.timestamp) == (
        ErrorCode.none,
        3,
        FIRST_MS + 101,
    )
    # No record is that late: -1, as in Kafka.
    late = await _offset(broker, version, FIRST_MS + 10_000)
    assert (late.error_code, late.offset, late.timestamp) == (ErrorCode.none, -1, -1)
    if version >= 4:
        assert found.leader_epoch == 2


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(
    # -3 largest timestamp (KIP-734), -4 earliest local, -5 latest tiered (KIP-405, KIP-1005), -6
    # earliest pending upload.
    ("special", "since", "offset"),
    [(-3, 7, 5), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)],
)
async def test_special_offsets_need_their_version(
    broker: ApiBroker, version: int, special: int, since: int, offset: int
) -> None:
    await _fill(broker)
    found = await _offset(broker, version, special)
    if version < since:
        assert found.error_code is ErrorCode.unsupported_version
    else:
        assert (found.error_code, found.offset) == (ErrorCode.none, offset)


async def test_list_offsets_errors(broker: ApiBroker) -> None:
    await _fill(broker)
    # Unknown special timestamps are refused, and not taken for points in time.
    assert (await _offset(broker, 10, -6)).error_code is ErrorCode.unsupported_version
    assert (await _offset(broker, 10, -77)).error_code is ErrorCode.unsupported_version
    fenced = await _offset(broker, 5, -1, current_leader_epoch=1)
    assert fenced.error_code is ErrorCode.fenced_leader_epoch
    answer: Any = await broker.ask(kafka.list_offsets(5, "nope", -1), kafka.answer_type(2, 5))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(2, 5))
async def test_offset_for_leader_epoch(broker: ApiBroker, version: int) -> None:
    await _fill(broker)

    async def ask(topic: str, current: int, epoch: int) -> Any:
        answer: Any = await broker.ask(
            kafka.offset_for_leader_epoch(version, topic, current, epoch),
            kafka.answer_type(23, version),
        )
        return answer.topics[0].partitions[0]

    found = await ask("t", 2, 2)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.none, 2, 6)
    # An epoch that the leader does not know yet has no end.
    newer = await ask("t", -1, 3)
    assert (newer.leader_epoch, newer.end_offset) == (-1, -1)
    assert (await ask("t", 1, 2)).error_code is ErrorCode.fenced_leader_epoch
    assert (await ask("t", 3, 2)).error_code is ErrorCode.unknown_leader_epoch
    assert (await ask("nope", -1, 0)).error_code is ErrorCode.unknown_topic_or_partition
