"""End of a round: no operation is pending, and everything readable is read.

Successors take over the transactional ids of abandoned instances and end their transactions, so
that readers of committed records reach the end. Then one reader of each level reads every
partition, and every group's offsets are requested. The checker compares earlier answers with that.
"""

import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.histories.clients import CALL_S, TRANSACTION_MS, Run, place_of, repeated
from tests.histories.consumers import Reading, fetch_committed
from tests.histories.levels import READ_COMMITTED, READ_UNCOMMITTED
from tests.histories.plan import TRANSFORMER, WRITER, RoundPlan

FINAL = "final"
_AT_ONCE = 1000


def close(run: Run, plan: RoundPlan, *, seconds: float) -> None:
    """Each of the steps may take so long."""
    # An open transaction would hold the last stable offset below the high watermark.
    _end_transactions(run, plan)
    places = run.places(tuple(run.topics))
    stable, high = _await_stable(run, places, seconds)
    run.recorder.point(FINAL, "ends", stable=stable, high=high)
    for group in sorted({client.group for client in plan.clients if client.group}):
        _ask(run, f"{group}-{run.seed}", places, seconds)
    # Each level to its own end: committed records end at the last stable offset.
    _read(run, READ_UNCOMMITTED, places, high, seconds)
    _read(run, READ_COMMITTED, places, stable, seconds)


def _end_transactions(run: Run, plan: RoundPlan) -> None:
    for client in plan.clients:
        if client.kind in (WRITER, TRANSFORMER):
            # InitProducerId with the id of an abandoned instance aborts or completes its
            # transaction.
            settings = {
                "transactional.id": f"{run.seed}-{client.name}",
                "transaction.timeout.ms": TRANSACTION_MS,
            }
            repeated(Producer(run.settings(**settings)).init_transactions)


def _await_stable(
    run: Run, places: list[TopicPartition], seconds: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Last stable offsets and high watermarks, once they are the same or time is over."""
    until_s = time.monotonic() + seconds
    while True:
        high = _ends(run, READ_UNCOMMITTED, places)
        stable = _ends(run, READ_COMMITTED, places)
        if stable == high or time.monotonic() > until_s:
            return stable, high
        time.sleep(0.2)


def _ends(run: Run, level: str, places: list[TopicPartition]) -> dict[str, int]:
    consumer = Consumer(run.settings(**{"group.id": "none", "isolation.level": level}))
    found: dict[str, int] = {}
    until_s = time.monotonic() + 6 * CALL_S
    for place in places:
        # Leaders may still be moving back after the last fault.
        while place_of(place) not in found:
            try:
                _, found[place_of(place)] = consumer.get_watermark_offsets(place, timeout=CALL_S)
            except KafkaException:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)
    consumer.close()
    return found


def _ask(run: Run, group: str, places: list[TopicPartition], seconds: float) -> None:
    settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": READ_COMMITTED}
    consumer = Consumer(run.settings(**settings))
    until_s = time.monotonic() + seconds
    asked = [TopicPartition(place.topic, place.partition) for place in places]
    # The coordinator may still be loading the group's log.
    while fetch_committed(run, FINAL, consumer, group, asked, final=True) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(
                f"no broker returned the offsets of group {group} for {seconds:.0f} s"
            )
        time.sleep(0.2)
    consumer.close()


def _read(
    run: Run, level: str, places: list[TopicPartition], ends: dict[str, int], seconds: float
) -> None:
    """Every partition to its end; what cannot be read in time is not read, and is missed."""
    settings = {"enable.partition.eof": True}
    reading = Reading(run, f"{FINAL}-{level}", level, settings, final=True)
    wanted = [TopicPartition(item.topic, item.partition, 0) for item in places]
    reading.consumer.assign(wanted)
    reading.moved({place_of(item): 0 for item in wanted})
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        # EOF events tell how far the library has come, also past markers that are no records.
        if all(reading.ended.get(place, 0) >= end for place, end in ends.items()):
            break
        reading.poll(_AT_ONCE)
    reading.consumer.close()
