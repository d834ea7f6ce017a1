"""Leaders return late to a broker that restarts repeatedly."""

import dataclasses

from tests.unit.controller.controller_world import ControllerWorld, broker, row, topic
from tidemark_operator.controller import elections
from tidemark_operator.controller.flapping_brokers import (
    MOST_S,
    REMEMBERED_S,
    BrokerReturns,
    wait_s,
)


class FlappingBroker:
    """Broker 1 with a clock, restarted by the test."""

    def __init__(self) -> None:
        self.broker_returns = BrokerReturns()
        self.broker = broker(1)
        self.now_s = 0
        self.messages: list[str] = []
        self.look()

    def look(self) -> None:
        events = self.broker_returns.observe([self.broker], now_s=self.now_s)
        self.messages += [event.message for event in events]

    def restart(self) -> None:
        """End the broker's session and register it again."""
        self.broker = dataclasses.replace(self.broker, fenced=True)
        self.look()
        epoch = self.broker.broker_epoch + 1
        self.broker = dataclasses.replace(self.broker, fenced=False, broker_epoch=epoch)
        self.look()

    def stay(self, seconds: int) -> bool:
        """Advance the clock and return whether the broker may get leaders."""
        self.now_s += seconds
        self.look()
        return not self.broker_returns.flapping(now_s=self.now_s)


def test_a_broker_that_restarts_once_need_not_wait() -> None:
    watch = FlappingBroker()
    assert watch.stay(0), "it was there before this controller"
    watch.restart()
    assert watch.stay(0)
    assert watch.messages == []


def test_a_broker_that_restarts_in_a_loop_gets_no_leaderships() -> None:
    # Restarts every few seconds up to every few minutes.
    for period_s in (5, 45, 100, 200):
        watch, given = FlappingBroker(), 0
        for _ in range(60):
            watch.restart()
            given += any([watch.stay(0), *(watch.stay(1) for _ in range(period_s - 1))])
            watch.now_s += 1
        # Leaders return at most a few times in sixty restarts.
        assert given <= 4, period_s


def test_each_wait_is_twice_as_long_and_none_longer_than_ten_minutes() -> None:
    assert [wait_s(times) for times in range(8)] == [0, 0, 60, 120, 240, 480, 600, 600]
    assert MOST_S < REMEMBERED_S
    watch = FlappingBroker()
    watch.restart()
    watch.restart()
    assert not watch.stay(59)
    assert watch.stay(1)
    (message,) = watch.messages
    assert message.startswith("broker 1 has returned 2 times in 15 minutes. It leads again")
    assert message.endswith("live for 60 s")


def test_old_restarts_are_forgotten() -> None:
    watch = FlappingBroker()
    for _ in range(5):
        watch.restart()
    watch.now_s += REMEMBERED_S
    watch.restart()
    assert watch.stay(0)


def test_restart_within_the_session_counts() -> None:
    watch = FlappingBroker()
    for _ in range(2):
        # The new process registers before the former session expires.
        epoch = watch.broker.broker_epoch + 1
        watch.broker = dataclasses.replace(watch.broker, broker_epoch=epoch)
        watch.look()
    assert not watch.stay(0)


def test_a_removed_broker_is_forgotten() -> None:
    watch = FlappingBroker()
    watch.restart()
    watch.restart()
    watch.broker_returns.observe([], now_s=0)
    assert not watch.broker_returns.flapping(now_s=0)


def test_existing_leaderships_are_not_taken_away() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=2)],
        rows=[row((1, 2), leader=2), row((2, 1), leader=1, partition=1)],
    )
    draft = world.draft()
    assert elections.balance_leaders(draft, limit=5, flapping={1}) == 1
    world.commit(draft)
    assert [made.leader for _, made in sorted(world.state.rows_of(topic().id).items())] == [2, 2]
    elections.fence(draft := world.draft(), [2], reason="it has stopped")
    world.commit(draft)
    assert {made.leader for made in world.state.all_rows()} == {1}, "no other broker can"
