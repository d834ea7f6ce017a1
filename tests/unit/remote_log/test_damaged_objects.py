"""Damaged objects in a partition's status, and how long they are reported."""

import uuid
from dataclasses import replace

import pytest

from tidemark.backoff import Backoff
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores.objects import SegmentUnreadable
from tidemark.wire.control import TIER_INTEGRITY
from tidemark_broker.remote_log.fetcher import Damages

TOPIC_ID = uuid.UUID(int=1)
KEY = (TOPIC_ID, 0)


def segment(start: int) -> SegmentEntry:
    return new_segment(
        topic="t",
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=uuid.UUID(int=start),
        start_offset=start,
        end_offset_inclusive=start + 9,
        max_timestamp_ms=0,
        size_bytes=1,
        broker_id=1,
        event_time_ms=0,
        leader_epochs=((0, 0),),
        leader_epoch=0,
        tiered_epoch=0,
    )


def message(damages: Damages, live_from: int = 0, key: tuple[uuid.UUID, int] = KEY) -> str:
    """Return the reported message while segments from ``live_from`` on are live."""
    failure = damages.failure(key, lambda entry: entry.end_offset_inclusive >= live_from)
    assert failure is None or failure.reason == "TierIntegrity"
    return "" if failure is None else failure.message


class PauseClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> PauseClock:
    return PauseClock()


@pytest.fixture
def damages(clock: PauseClock) -> Damages:
    made = Damages(Backoff(first_s=1, most_s=3), clock)
    assert made.record(KEY, segment(10), 13, TIER_INTEGRITY, "ten")
    assert made.record(KEY, segment(20), 20, TIER_INTEGRITY, "twenty")
    assert not made.record(KEY, segment(10), 13, TIER_INTEGRITY, "ten")
    return made


def test_damage_is_reported_until_its_offset_is_read_successfully(damages: Damages) -> None:
    # The read ends before the damaged offset 13, or is of another segment.
    damages.sound(KEY, segment(10), 10, 13)
    damages.sound(KEY, segment(0), 0, 100)
    assert message(damages) == "ten"
    assert message(damages, key=(TOPIC_ID, 1)) == ""
    damages.sound(KEY, replace(segment(10), from_offset=12), 12, 14)
    assert message(damages) == "twenty"
    damages.sound(KEY, segment(20), 20, 21)
    assert message(damages) == ""


def test_damage_is_no_longer_reported_once_its_records_are_deleted(damages: Damages) -> None:
    assert message(damages, live_from=20) == "twenty"
    assert message(damages, live_from=30) == ""
    # The entry was removed, not only hidden.
    assert message(damages) == ""


def test_failed_read_is_repeated_after_a_growing_pause(damages: Damages, clock: PauseClock) -> None:
    for pause_s in (1, 2, 3, 3):
        clock.now_s += pause_s - 0.1
        with pytest.raises(ObjectDamaged, match="twenty"):
            damages.check(KEY, segment(20), 20)
        # Nothing is known about other records, segments and partitions.
        damages.check(KEY, segment(20), 21)
        damages.check(KEY, segment(30), 20)
        damages.check((TOPIC_ID, 1), segment(20), 20)
        clock.now_s += 0.1
        damages.check(KEY, segment(20), 20)
        damages.record(KEY, segment(20), 20, TIER_INTEGRITY, "twenty")
    damages.sound(KEY, segment(20), 20, 30)
    damages.check(KEY, segment(20), 20)


def test_segment_without_a_readable_object_fails_at_each_offset(damages: Damages) -> None:
    # The segment's first failure was logged already.
    assert not damages.record(KEY, segment(10), None, "EncryptionKeyMissing", "key")
    assert damages.record(KEY, segment(30), None, "EncryptionKeyMissing", "key")
    for offset in (30, 35):
        with pytest.raises(SegmentUnreadable, match="key") as raised:
            damages.check(KEY, segment(30), offset)
        assert raised.value.reason == "EncryptionKeyMissing"
    # Any successful read shows that it is repaired.
    damages.sound(KEY, segment(30), 38, 40)
    damages.check(KEY, segment(30), 30)


def test_damage_is_forgotten_with_its_replica(damages: Damages) -> None:
    damages.forget(KEY)
    assert message(damages) == ""


def test_the_number_of_remembered_damages_is_limited(damages: Damages) -> None:
    for start in range(100, 1100, 10):
        damages.record(KEY, segment(start), start, TIER_INTEGRITY, str(start))
    assert message(damages) == "940"
    for number in range(2000):
        # Partitions are limited too: the oldest one is dropped.
        damages.record((TOPIC_ID, number + 1), segment(0), 0, TIER_INTEGRITY, "other")
    assert message(damages) == ""
