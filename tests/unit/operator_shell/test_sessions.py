"""Broker sessions: fresh at the start, forgiving after a stall of our own, strict otherwise; a
process whose connections were closed is given up within seconds."""

from tidemark_operator.listener.sessions import GRACE_S, RETURN_S, BrokerSession, BrokerSessions
from tidemark_operator.listener.standby_discovery import Knocks, Looked

TIMEOUT_S = 9.0
TICK_S = 0.25


OTHER = 99


def sessions_of(*broker_ids: int, now_s: float = 0.0, reached: bool = True) -> BrokerSessions:
    """Return open sessions; ``reached``: another broker has sent a heartbeat."""
    held = BrokerSessions(TIMEOUT_S, TICK_S)
    for broker_id in broker_ids:
        held.open(broker_id, broker_epoch=broker_id * 10, now_s=now_s)
    if reached:
        held.open(OTHER, OTHER * 10, now_s)
        beat(held, OTHER, now_s)
        held.close(OTHER)
        held.tick(now_s - TICK_S)
    held.tick(now_s)
    return held


def beat(
    held: BrokerSessions,
    broker_id: int,
    now_s: float,
    *,
    snapshot: int = -1,
    shut_down: bool = False,
    loop_age_s: float = 0.0,
) -> tuple[BrokerSession, bool] | None:
    return held.heartbeat(
        broker_id,
        broker_id * 10,
        now_s,
        snapshot_controller_epoch=snapshot,
        want_shut_down=shut_down,
        loop_age_s=loop_age_s,
    )


def run_to(held: BrokerSessions, start_s: float, end_s: float) -> list[tuple[int, int]]:
    """Regular ticks; everybody that expired."""
    expired: list[tuple[int, int]] = []
    ticks = round((end_s - start_s) / TICK_S)
    for number in range(1, ticks + 1):
        expired += held.tick(start_s + number * TICK_S)
    return expired


def test_a_silent_broker_expires_once_after_its_session() -> None:
    held = sessions_of(1, 2)
    assert run_to(held, 0.0, 5.0) == []
    beat(held, 2, 5.0)
    assert run_to(held, 5.0, 9.0) == []
    assert run_to(held, 9.0, 13.0) == [(1, 10)]
    assert not held.alive(1)
    assert held.alive(2)


def test_a_controller_that_no_broker_has_reached_fences_no_broker() -> None:
    """Brokers continue without a controller, and one that is cut off from all of them must not stop
    them. The first heartbeat starts the time of the others.
    """
    held = sessions_of(1, 2, reached=False)
    assert run_to(held, 0.0, 100.0) == []
    assert held.alive(1)
    beat(held, 2, 100.0)
    assert run_to(held, 100.0, 109.0) == []
    beat(held, 2, 108.0)
    assert run_to(held, 109.0, 112.0) == [(1, 10)]


def test_a_new_process_does_not_wait_for_ever_for_the_former_one() -> None:
    """Without proof it is refused until the session of that one has expired."""
    held = sessions_of(1, reached=False)
    held.knocked(1, 50.0)
    assert run_to(held, 50.0, 60.0) == [(1, 10)]


def test_after_a_stalled_intake_no_session_expires_and_the_stall_is_credited() -> None:
    held = sessions_of(1)
    run_to(held, 0.0, 1.0)
    assert held.tick(61.0) == []
    assert run_to(held, 61.0, 68.0) == []
    assert run_to(held, 68.0, 70.0) == [(1, 10)]


def test_a_broker_with_a_blocked_loop_counts_as_dead_although_its_thread_reports() -> None:
    held = sessions_of(1)
    expired: list[tuple[int, int]] = []
    for second in range(1, 12):
        beat(held, 1, float(second), loop_age_s=20.0)
        expired += run_to(held, float(second - 1), float(second))
    assert expired == [(1, 10)]


def test_a_change_is_announced_once_and_a_return_from_expiry_is_one() -> None:
    held = sessions_of(1)
    taken = beat(held, 1, 1.0)
    assert taken is not None
    assert not taken[1]
    snapshot = beat(held, 1, 2.0, snapshot=4)
    assert snapshot is not None
    assert snapshot[1]
    again = beat(held, 1, 3.0, snapshot=4)
    assert again is not None
    assert not again[1]
    assert run_to(held, 3.0, 14.0) == [(1, 10)]
    back = beat(held, 1, 14.5, snapshot=4)
    assert back is not None
    assert back[1]
    assert held.alive(1)


def test_a_heartbeat_of_a_former_registration_has_to_register_again() -> None:
    held = sessions_of(1)
    held.open(1, 99, 1.0)
    assert beat(held, 1, 2.0) is None
    assert beat(held, 7, 2.0) is None


def test_the_answer_carries_what_the_controller_decided() -> None:
    held = sessions_of(1)
    held.set_state(1, 10, fenced=False, should_shut_down=True)
    taken = beat(held, 1, 1.0)
    assert taken is not None
    assert not taken[0].is_fenced
    assert taken[0].should_shut_down
    held.set_state(1, 11, fenced=True, should_shut_down=False)
    assert not taken[0].is_fenced


# ---------------------------------------------------------------- connections


def connected(held: BrokerSessions, broker_id: int, connections: int = 3) -> None:
    for _ in range(connections):
        assert held.connected(broker_id, broker_id * 10)


def test_a_broker_without_connections_is_fenced_after_a_short_grace() -> None:
    held = sessions_of(1, 2)
    connected(held, 1)
    connected(held, 2)
    run_to(held, 0.0, 1.0)
    for _ in range(3):
        held.disconnected(1, 10, 1.0)
    assert held.alive(1)
    assert not held.is_connected(1)
    assert run_to(held, 1.0, 1.0 + GRACE_S) == []
    assert run_to(held, 1.0 + GRACE_S, 4.0) == [(1, 10)]
    assert not held.alive(1)
    assert held.alive(2)


def test_one_open_connection_is_a_sign_of_life() -> None:
    held = sessions_of(1)
    connected(held, 1, 2)
    held.disconnected(1, 10, 1.0)
    assert held.is_connected(1)
    assert run_to(held, 0.0, 8.0) == []


def test_a_broker_that_reconnects_within_the_grace_keeps_its_session() -> None:
    held = sessions_of(1)
    connected(held, 1, 1)
    held.disconnected(1, 10, 1.0)
    run_to(held, 0.0, 2.0)
    connected(held, 1, 1)
    beat(held, 1, 2.0)
    assert run_to(held, 2.0, 10.0) == []
    held.disconnected(1, 10, 10.0)
    held.open(1, 10, 11.0)
    assert run_to(held, 10.0, 15.0) == [], "it registered again"


def test_a_registration_that_is_being_decided_is_not_overtaken_by_the_grace() -> None:
    held = sessions_of(1)
    connected(held, 1, 1)
    held.disconnected(1, 10, 1.0)
    run_to(held, 0.0, 2.0)
    held.knocked(1, 2.0)
    assert run_to(held, 2.0, 2.0 + GRACE_S) == []
    assert not held.is_connected(1)


def test_the_same_registration_again_keeps_count_of_its_connections() -> None:
    held = sessions_of(1)
    connected(held, 1, 2)
    held.open(1, 10, 1.0)
    held.disconnected(1, 10, 1.5)
    assert held.is_connected(1)
    held.disconnected(1, 10, 1.5)
    assert not held.is_connected(1)


def test_connections_of_a_former_registration_say_nothing() -> None:
    held = sessions_of(1)
    connected(held, 1, 1)
    held.open(1, 99, 1.0)
    held.disconnected(1, 10, 1.0)
    assert held.is_connected(1)
    assert not held.connected(1, 10)
    assert run_to(held, 0.0, 8.0) == []


def test_a_broker_that_was_known_at_the_take_over_may_take_its_session_to_connect() -> None:
    held = sessions_of(1)
    assert held.is_connected(1)
    assert run_to(held, 0.0, 9.0) == []


def test_after_a_stall_of_the_intake_the_grace_is_given_back_too() -> None:
    held = sessions_of(1)
    connected(held, 1, 1)
    run_to(held, 0.0, 1.0)
    held.disconnected(1, 10, 1.0)
    assert held.tick(31.0) == []
    assert run_to(held, 31.0, 32.0) == []
    connected(held, 1, 1)
    assert run_to(held, 32.0, 38.0) == []


def test_a_broker_that_is_unfenced_after_its_session_ran_out_is_watched_again() -> None:
    """Its last word, that it applied its snapshot, was decided behind the end of its session."""
    held = sessions_of(1)
    held.set_state(1, 10, fenced=False, should_shut_down=False)
    connected(held, 1, 1)
    held.disconnected(1, 10, 1.0)
    assert run_to(held, 0.0, 4.0) == [(1, 10)]
    held.set_state(1, 10, fenced=True, should_shut_down=False)
    assert run_to(held, 4.0, 20.0) == [], "it is fenced"
    held.set_state(1, 10, fenced=False, should_shut_down=False)
    assert run_to(held, 20.0, 21.0) == [(1, 10)]


# ---------------------------------------------------------------- what was before the term


def term_after(looked: Looked, *broker_ids: int, now_s: float = 100.0) -> BrokerSessions:
    """Begun at ``now_s``, when broker 1 comes at once."""
    held = BrokerSessions(TIMEOUT_S, TICK_S, looked)
    for broker_id in broker_ids:
        held.open(broker_id, broker_epoch=broker_id * 10, now_s=now_s)
    held.tick(now_s - TICK_S)
    beat(held, 1, now_s)
    held.tick(now_s)
    return held


def test_silence_before_the_term_counts_once_brokers_have_looked_for_a_controller() -> None:
    """Broker 2 has not come for as long as broker 1 has."""
    held = term_after(Looked(92.0, {1: 99.8}), 1, 2)
    assert run_to(held, 100.0, 100.0 + RETURN_S) == []
    assert run_to(held, 102.0, 103.0) == [(2, 20)]
    assert held.alive(1)


def test_a_session_never_starts_before_the_first_discovery_request() -> None:
    held = term_after(Looked(97.0, {1: 99.8}), 1, 2)
    assert run_to(held, 100.0, 97.0 + TIMEOUT_S) == []
    beat(held, 1, 106.0)
    assert run_to(held, 106.0, 107.0) == [(2, 20)]


def test_a_discovery_request_counts_as_a_heartbeat() -> None:
    held = term_after(Looked(91.0, {1: 99.8, 2: 99.0}), 1, 2)
    assert run_to(held, 100.0, 108.0) == []
    beat(held, 1, 108.0)
    assert run_to(held, 108.0, 109.0) == [(2, 20)]


def test_no_session_expires_before_a_broker_has_reached_a_later_controller() -> None:
    """The controller may have been cut off from all of them since the beginning of its term."""
    held = BrokerSessions(TIMEOUT_S, TICK_S, Looked(91.0, {1: 99.8}))
    for broker_id in (1, 2):
        held.open(broker_id, broker_epoch=broker_id * 10, now_s=100.0)
    held.tick(100.0)
    assert run_to(held, 100.0, 200.0) == []
    beat(held, 1, 200.0)
    assert run_to(held, 200.0, 200.0 + RETURN_S) == []
    assert run_to(held, 202.0, 203.0) == [(2, 20)]


def test_a_broker_that_connects_then_has_a_whole_session() -> None:
    held = term_after(Looked(80.0, {1: 99.8}), 1, 2, 3)
    held.knocked(2, 101.0)
    held.open(3, broker_epoch=30, now_s=101.0)
    assert run_to(held, 100.0, 108.0) == []
    beat(held, 1, 108.0)
    assert run_to(held, 108.0, 111.0) == [(2, 20), (3, 30)]


def test_a_short_session_is_not_made_longer() -> None:
    held = BrokerSessions(1.0, TICK_S, Looked(91.0, {}))
    for broker_id in (1, 2):
        held.open(broker_id, broker_epoch=broker_id * 10, now_s=100.0)
    held.tick(99.75)
    beat(held, 1, 100.0)
    held.tick(100.0)
    assert (2, 20) in run_to(held, 100.0, 101.5)


def test_discovery_requests_count_since_the_last_term() -> None:
    knocks = Knocks()
    assert knocks.looked() == Looked()
    knocks.heard(1, 5.0)
    knocks.forget()
    knocks.heard(2, 6.0)
    knocks.heard(1, 7.0)
    knocks.heard(2, 8.0)
    assert knocks.looked() == Looked(6.0, {2: 8.0, 1: 7.0})
    assert knocks.looked().seconds(10.0) == 4.0
    assert Looked().seconds(10.0) == 0.0
