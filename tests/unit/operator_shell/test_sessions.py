"""Broker sessions: full at the start of a term, extended after a stall of the operator.

A process whose connections are closed is given up within seconds.
"""

from tidemark.wire.control import BrokerHeartbeatRequest
from tidemark_operator.listener import server
from tidemark_operator.listener.sessions import GRACE_S, RETURN_S, BrokerSession, BrokerSessions
from tidemark_operator.listener.standby_discovery import BrokerSearches, ControllerSearches

TIMEOUT_S = 9.0
SUSPECT_S = 2.0
TICK_S = 0.25


OTHER = 99


def sessions_of(*broker_ids: int, now_s: float = 0.0, reached: bool = True) -> BrokerSessions:
    """Return open sessions; ``reached``: another broker has sent a heartbeat."""
    sessions = BrokerSessions(TIMEOUT_S, TICK_S, suspect_timeout_s=SUSPECT_S)
    for broker_id in broker_ids:
        sessions.open(broker_id, broker_epoch=broker_id * 10, now_s=now_s)
    if reached:
        # A term fences no broker before the first heartbeat of any broker.
        sessions.open(OTHER, OTHER * 10, now_s)
        beat(sessions, OTHER, now_s)
        sessions.close(OTHER)
        sessions.tick(now_s - TICK_S)
    sessions.tick(now_s)
    return sessions


def beat(
    sessions: BrokerSessions,
    broker_id: int,
    now_s: float,
    *,
    snapshot: int = -1,
    shut_down: bool = False,
    loop_age_s: float = 0.0,
    interval_s: float = 0.5,
    unresponsive: tuple[int, ...] = (),
) -> tuple[BrokerSession, bool] | None:
    # The broker epoch is ten times the id, as in every session here.
    request = BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=broker_id * 10,
        snapshot_controller_epoch=snapshot,
        want_shut_down=shut_down,
        loop_age_ms=round(loop_age_s * 1000),
        interval_ms=round(interval_s * 1000),
        unresponsive=unresponsive,
    )
    return sessions.heartbeat(request, now_s)


def run_to(sessions: BrokerSessions, start_s: float, end_s: float) -> list[tuple[int, int]]:
    """Tick regularly, and return the expired brokers with their epochs."""
    expired: list[tuple[int, int]] = []
    ticks = round((end_s - start_s) / TICK_S)
    for number in range(1, ticks + 1):
        expired += sessions.tick(start_s + number * TICK_S)
    return expired


def test_a_silent_broker_expires_once_after_its_session() -> None:
    sessions = sessions_of(1, 2)
    assert run_to(sessions, 0.0, 5.0) == []
    beat(sessions, 2, 5.0)
    assert run_to(sessions, 5.0, 9.0) == []
    # The session of broker 2 was renewed at 5 s, so only broker 1 expires.
    assert run_to(sessions, 9.0, 13.0) == [(1, 10)]
    assert not sessions.alive(1)
    assert sessions.alive(2)


def test_a_silent_broker_that_another_one_misses_expires_after_the_suspect_timeout() -> None:
    sessions = sessions_of(1, 2)
    beat(sessions, 1, 0.0)
    beat(sessions, 2, 1.5, unresponsive=(1, 77))
    assert run_to(sessions, 0.0, SUSPECT_S) == []
    assert run_to(sessions, SUSPECT_S, 2.5) == [(1, 10)]
    # Ids of brokers that do not exist are not kept, however many a peer sends.
    reporter = sessions.get(2, 20)
    assert reporter is not None
    assert reporter.unresponsive == {1}


def test_a_broker_that_sends_heartbeats_is_not_suspected() -> None:
    sessions = sessions_of(1, 2)
    for number in range(20):
        beat(sessions, 1, number / 2)
        beat(sessions, 2, number / 2, unresponsive=(1,))
        assert run_to(sessions, number / 2, (number + 1) / 2) == []


def test_a_report_counts_only_while_its_broker_is_heard() -> None:
    sessions = sessions_of(1, 2)
    beat(sessions, 1, 0.0)
    beat(sessions, 2, 0.0, unresponsive=(1,))
    # The controller hears neither of them, so the report may be as old as the silence.
    assert run_to(sessions, 0.0, TIMEOUT_S) == []


def test_a_withdrawn_report_does_not_count() -> None:
    sessions = sessions_of(1, 2)
    beat(sessions, 1, 0.0)
    beat(sessions, 2, 1.0, unresponsive=(1,))
    beat(sessions, 2, 1.5)
    assert run_to(sessions, 0.0, 3.0) == []


def test_a_broker_of_an_earlier_version_has_the_whole_session() -> None:
    sessions = sessions_of(1, 2)
    # It sends a heartbeat every quarter of the session, and no interval.
    beat(sessions, 1, 0.0, interval_s=0.0)
    beat(sessions, 2, 2.0, unresponsive=(1,))
    assert run_to(sessions, 0.0, 3.75) == []


def test_silence_before_a_broker_reaches_the_term_is_no_suspicion() -> None:
    sessions = sessions_of(1, 2)
    beat(sessions, 2, 2.0, unresponsive=(1,))
    assert run_to(sessions, 0.0, 3.75) == []


def test_a_controller_that_no_broker_has_reached_fences_no_broker() -> None:
    """Brokers continue without a controller, and one that is cut off from all of them must not stop
    them. The first heartbeat starts the time of the others.
    """
    sessions = sessions_of(1, 2, reached=False)
    assert run_to(sessions, 0.0, 100.0) == []
    assert sessions.alive(1)
    beat(sessions, 2, 100.0)
    assert run_to(sessions, 100.0, 109.0) == []
    beat(sessions, 2, 108.0)
    # The time of broker 1 starts with the first heartbeat, at 100 s.
    assert run_to(sessions, 109.0, 112.0) == [(1, 10)]


def test_new_process_waits_at_most_for_the_former_session() -> None:
    """Without proof, the new process is refused until the former session has expired."""
    sessions = sessions_of(1, reached=False)
    # The new process dials at 50 s, which starts the time of the former one.
    sessions.registration_requested(1, 50.0)
    assert run_to(sessions, 50.0, 60.0) == [(1, 10)]


def test_stall_of_the_operator_is_credited_to_sessions() -> None:
    sessions = sessions_of(1)
    run_to(sessions, 0.0, 1.0)
    # The operator was blocked for a minute, and could not read heartbeats.
    assert sessions.tick(61.0) == []
    assert run_to(sessions, 61.0, 68.0) == []
    assert run_to(sessions, 68.0, 70.0) == [(1, 10)]


def test_a_broker_with_a_blocked_loop_counts_as_dead_although_its_thread_reports() -> None:
    sessions = sessions_of(1)
    expired: list[tuple[int, int]] = []
    for second in range(1, 12):
        # The heartbeat thread runs, but the broker's event loop is blocked for 20 s.
        beat(sessions, 1, float(second), loop_age_s=20.0)
        expired += run_to(sessions, float(second - 1), float(second))
    assert expired == [(1, 10)]


def test_heartbeat_reports_changes_once() -> None:
    sessions = sessions_of(1)
    answer = beat(sessions, 1, 1.0)
    assert answer is not None
    assert not answer[1]
    # An applied snapshot is news once: the second report of it is none.
    snapshot = beat(sessions, 1, 2.0, snapshot=4)
    assert snapshot is not None
    assert snapshot[1]
    again = beat(sessions, 1, 3.0, snapshot=4)
    assert again is not None
    assert not again[1]
    assert run_to(sessions, 3.0, 14.0) == [(1, 10)]
    # After the expiry, even an unchanged heartbeat is news.
    returned = beat(sessions, 1, 14.5, snapshot=4)
    assert returned is not None
    assert returned[1]
    assert sessions.alive(1)


def test_heartbeat_of_a_former_registration_is_refused() -> None:
    sessions = sessions_of(1)
    # The broker registered again, under another epoch.
    sessions.open(1, 99, 1.0)
    assert beat(sessions, 1, 2.0) is None
    assert beat(sessions, 7, 2.0) is None


def test_heartbeat_answer_has_the_decided_state() -> None:
    sessions = sessions_of(1)
    sessions.set_state(1, 10, fenced=False, should_shut_down=True)
    answer = beat(sessions, 1, 1.0)
    assert answer is not None
    assert not answer[0].is_fenced
    assert answer[0].should_shut_down
    # A decision about another registration does not apply.
    sessions.set_state(1, 11, fenced=True, should_shut_down=False)
    assert not answer[0].is_fenced


# ---------------------------------------------------------------- connections


def connected(sessions: BrokerSessions, broker_id: int, connections: int = 3) -> None:
    for _ in range(connections):
        assert sessions.connected(broker_id, broker_id * 10)


def test_a_broker_without_connections_is_fenced_after_a_short_grace() -> None:
    sessions = sessions_of(1, 2)
    connected(sessions, 1)
    connected(sessions, 2)
    run_to(sessions, 0.0, 1.0)
    # All three connections break, as when the process is killed.
    for _ in range(3):
        sessions.disconnected(1, 10, 1.0)
    assert sessions.alive(1)
    assert not sessions.is_connected(1)
    assert run_to(sessions, 1.0, 1.0 + GRACE_S) == []
    assert run_to(sessions, 1.0 + GRACE_S, 4.0) == [(1, 10)]
    assert not sessions.alive(1)
    assert sessions.alive(2)


def test_a_killed_process_is_fenced_within_900_ms() -> None:
    sessions = BrokerSessions(TIMEOUT_S, server.TICK_S)
    sessions.open(1, broker_epoch=10, now_s=0.0)
    connected(sessions, 1, 1)
    for _ in range(3):
        sessions.tick(0.0)
    # Killed directly after a check: nearly a whole interval is lost.
    sessions.disconnected(1, 10, 0.0)
    checks_s = (number * server.TICK_S for number in range(1, 100))
    assert next(at_s for at_s in checks_s if sessions.tick(at_s)) <= 0.9


def test_one_open_connection_is_a_sign_of_life() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 2)
    sessions.disconnected(1, 10, 1.0)
    assert sessions.is_connected(1)
    assert run_to(sessions, 0.0, 8.0) == []


def test_a_broker_that_reconnects_within_the_grace_keeps_its_session() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 1)
    run_to(sessions, 0.0, 1.0)
    # The only connection breaks, and another one is opened in time.
    sessions.disconnected(1, 10, 1.0)
    assert run_to(sessions, 1.0, 1.0 + GRACE_S) == []
    connected(sessions, 1, 1)
    beat(sessions, 1, 2.0)
    assert run_to(sessions, 1.0 + GRACE_S, 10.0) == []
    sessions.disconnected(1, 10, 10.0)
    sessions.open(1, 10, 11.0)
    assert run_to(sessions, 10.0, 15.0) == [], "it registered again"


def test_pending_registration_suspends_the_grace() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 1)
    run_to(sessions, 0.0, 1.0)
    sessions.disconnected(1, 10, 1.0)
    assert run_to(sessions, 1.0, 1.0 + GRACE_S) == []
    # The restarted process is registering: its expiry must not race with that.
    sessions.registration_requested(1, 1.0 + GRACE_S)
    assert run_to(sessions, 1.0 + GRACE_S, 1.0 + 2 * GRACE_S) == []
    assert not sessions.is_connected(1)


def test_repeated_registration_keeps_its_connection_count() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 2)
    sessions.open(1, 10, 1.0)
    # One of two connections remains.
    sessions.disconnected(1, 10, 1.5)
    assert sessions.is_connected(1)
    sessions.disconnected(1, 10, 1.5)
    assert not sessions.is_connected(1)


def test_connections_of_a_former_registration_are_ignored() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 1)
    sessions.open(1, 99, 1.0)
    sessions.disconnected(1, 10, 1.0)
    assert sessions.is_connected(1)
    assert not sessions.connected(1, 10)
    assert run_to(sessions, 0.0, 8.0) == []


def test_broker_known_at_takeover_has_a_session_to_connect() -> None:
    sessions = sessions_of(1)
    assert sessions.is_connected(1)
    assert run_to(sessions, 0.0, 9.0) == []


def test_stall_of_the_operator_is_credited_to_the_grace() -> None:
    sessions = sessions_of(1)
    connected(sessions, 1, 1)
    run_to(sessions, 0.0, 1.0)
    sessions.disconnected(1, 10, 1.0)
    # The operator was blocked from the next tick, due at 1.25, while the grace was running.
    assert sessions.tick(31.0) == []
    assert run_to(sessions, 31.0, 30.75 + GRACE_S) == []
    connected(sessions, 1, 1)
    assert run_to(sessions, 30.75 + GRACE_S, 38.0) == []


def test_broker_unfenced_after_expiry_is_watched_again() -> None:
    """Its last heartbeat, with the applied snapshot, was decided after the session had ended."""
    sessions = sessions_of(1)
    sessions.set_state(1, 10, fenced=False, should_shut_down=False)
    connected(sessions, 1, 1)
    sessions.disconnected(1, 10, 1.0)
    assert run_to(sessions, 0.0, 4.0) == [(1, 10)]
    sessions.set_state(1, 10, fenced=True, should_shut_down=False)
    # A fenced broker is not reported again.
    assert run_to(sessions, 4.0, 20.0) == [], "it is fenced"
    sessions.set_state(1, 10, fenced=False, should_shut_down=False)
    # Once unfenced, the missing connections count at once.
    assert run_to(sessions, 20.0, 21.0) == [(1, 10)]


# ---------------------------------------------------------------- before the term


def term_after(searches: BrokerSearches, *broker_ids: int, now_s: float = 100.0) -> BrokerSessions:
    """Return the sessions of a term that starts at ``now_s``; broker 1 connects at once."""
    sessions = BrokerSessions(TIMEOUT_S, TICK_S, searches)
    for broker_id in broker_ids:
        sessions.open(broker_id, broker_epoch=broker_id * 10, now_s=now_s)
    sessions.tick(now_s - TICK_S)
    beat(sessions, 1, now_s)
    sessions.tick(now_s)
    return sessions


def test_silence_before_the_term_counts_once_brokers_have_looked_for_a_controller() -> None:
    """Broker 2 has been silent since the standby began to listen."""
    # The standby has listened since 92 s, and broker 1 dialled it at 99.8 s.
    sessions = term_after(BrokerSearches(92.0, {1: 99.8}), 1, 2)
    assert run_to(sessions, 100.0, 100.0 + RETURN_S) == []
    assert run_to(sessions, 102.0, 103.0) == [(2, 20)]
    assert sessions.alive(1)


def test_a_session_never_starts_before_the_first_discovery_request() -> None:
    # The standby listened since 97 s: silence before that is not known.
    sessions = term_after(BrokerSearches(97.0, {1: 99.8}), 1, 2)
    assert run_to(sessions, 100.0, 97.0 + TIMEOUT_S) == []
    beat(sessions, 1, 106.0)
    assert run_to(sessions, 106.0, 107.0) == [(2, 20)]


def test_a_discovery_request_counts_as_a_heartbeat() -> None:
    # Broker 2 dialled the standby at 99 s, so its session ends at 108 s.
    sessions = term_after(BrokerSearches(91.0, {1: 99.8, 2: 99.0}), 1, 2)
    assert run_to(sessions, 100.0, 108.0) == []
    beat(sessions, 1, 108.0)
    assert run_to(sessions, 108.0, 109.0) == [(2, 20)]


def test_no_session_expires_before_a_broker_has_reached_a_later_controller() -> None:
    """The controller may have been cut off from all brokers since its term began."""
    sessions = BrokerSessions(TIMEOUT_S, TICK_S, BrokerSearches(91.0, {1: 99.8}))
    for broker_id in (1, 2):
        sessions.open(broker_id, broker_epoch=broker_id * 10, now_s=100.0)
    sessions.tick(100.0)
    assert run_to(sessions, 100.0, 200.0) == []
    beat(sessions, 1, 200.0)
    assert run_to(sessions, 200.0, 200.0 + RETURN_S) == []
    assert run_to(sessions, 202.0, 203.0) == [(2, 20)]


def test_broker_that_connects_gets_a_full_session() -> None:
    sessions = term_after(BrokerSearches(80.0, {1: 99.8}), 1, 2, 3)
    # Broker 2 dials and broker 3 registers at 101 s: both have until 110 s.
    sessions.registration_requested(2, 101.0)
    sessions.open(3, broker_epoch=30, now_s=101.0)
    assert run_to(sessions, 100.0, 108.0) == []
    beat(sessions, 1, 108.0)
    assert run_to(sessions, 108.0, 111.0) == [(2, 20), (3, 30)]


def test_a_short_session_is_not_made_longer() -> None:
    # A session of 1 s is shorter than the time to return.
    sessions = BrokerSessions(1.0, TICK_S, BrokerSearches(91.0, {}))
    for broker_id in (1, 2):
        sessions.open(broker_id, broker_epoch=broker_id * 10, now_s=100.0)
    sessions.tick(99.75)
    beat(sessions, 1, 100.0)
    sessions.tick(100.0)
    assert (2, 20) in run_to(sessions, 100.0, 101.5)


def test_discovery_requests_count_since_the_last_term() -> None:
    discovery = ControllerSearches()
    assert discovery.snapshot() == BrokerSearches()
    discovery.record(1, 5.0)
    discovery.forget()
    discovery.record(2, 6.0)
    discovery.record(1, 7.0)
    discovery.record(2, 8.0)
    # forget() drops the first term's requests, so that the count restarts at 6 s.
    assert discovery.snapshot() == BrokerSearches(6.0, {2: 8.0, 1: 7.0})
    assert discovery.snapshot().seconds(10.0) == 4.0
    assert BrokerSearches().seconds(10.0) == 0.0
