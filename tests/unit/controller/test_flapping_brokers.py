"""A broker that keeps coming back is not given its leaders back at once."""

import dataclasses

from tests.unit.controller.controller_world import World, broker, row, topic
from tidemark_operator.controller import elections
from tidemark_operator.controller.flapping_brokers import MOST_S, REMEMBERED_S, Comebacks, wait_s


class Watch:
    """Broker 1 and a clock; how often it restarts is up to the test."""

    def __init__(self) -> None:
        self.comebacks = Comebacks()
        self.broker = broker(1)
        self.now_s = 0
        self.told: list[str] = []
        self.look()

    def look(self) -> None:
        events = self.comebacks.look([self.broker], now_s=self.now_s)
        self.told += [event.message for event in events]

    def restart(self) -> None:
        """End the broker's session and register it again."""
        self.broker = dataclasses.replace(self.broker, fenced=True)
        self.look()
        epoch = self.broker.broker_epoch + 1
        self.broker = dataclasses.replace(self.broker, fenced=False, broker_epoch=epoch)
        self.look()

    def stay(self, seconds: int) -> bool:
        """Whether it would be given leaders then."""
        self.now_s += seconds
        self.look()
        return not self.comebacks.held_back(now_s=self.now_s)


def test_a_broker_that_restarts_once_need_not_wait() -> None:
    watch = Watch()
    assert watch.stay(0), "it was there before this controller"
    watch.restart()
    assert watch.stay(0)
    assert watch.told == []


def test_a_broker_that_restarts_in_a_loop_gets_no_leaderships() -> None:
    for period_s in (5, 45, 100, 200):
        watch, given = Watch(), 0
        for _ in range(60):
            watch.restart()
            given += any([watch.stay(0), *(watch.stay(1) for _ in range(period_s - 1))])
            watch.now_s += 1
        assert given <= 4, period_s


def test_each_wait_is_twice_as_long_and_none_longer_than_ten_minutes() -> None:
    assert [wait_s(times) for times in range(8)] == [0, 0, 60, 120, 240, 480, 600, 600]
    assert MOST_S < REMEMBERED_S
    watch = Watch()
    watch.restart()
    watch.restart()
    assert not watch.stay(59)
    assert watch.stay(1)
    (told,) = watch.told
    assert told.startswith("broker 1 has restarted 2 times in 15 minutes. It leads again")
    assert told.endswith("live for 60 s")


def test_what_is_long_ago_counts_no_more() -> None:
    watch = Watch()
    for _ in range(5):
        watch.restart()
    watch.now_s += REMEMBERED_S
    watch.restart()
    assert watch.stay(0)


def test_a_process_that_is_faster_than_its_session_ends_counts() -> None:
    watch = Watch()
    for _ in range(2):
        epoch = watch.broker.broker_epoch + 1
        watch.broker = dataclasses.replace(watch.broker, broker_epoch=epoch)
        watch.look()
    assert not watch.stay(0)


def test_a_removed_broker_is_forgotten() -> None:
    watch = Watch()
    watch.restart()
    watch.restart()
    watch.comebacks.look([], now_s=0)
    assert not watch.comebacks.held_back(now_s=0)


def test_only_what_would_be_given_back_to_it_stays_where_it_is() -> None:
    world = World(
        brokers=[broker(1), broker(2)],
        topics=[topic(partitions=2)],
        rows=[row((1, 2), leader=2), row((2, 1), leader=1, partition=1)],
    )
    draft = world.draft()
    assert elections.balance_leaders(draft, limit=5, held_back={1}) == 1
    world.commit(draft)
    assert [made.leader for _, made in sorted(world.state.rows_of(topic().id).items())] == [2, 2]
    elections.fence(draft := world.draft(), [2], reason="it has stopped")
    world.commit(draft)
    assert {made.leader for made in world.state.all_rows()} == {1}, "no other broker can"
