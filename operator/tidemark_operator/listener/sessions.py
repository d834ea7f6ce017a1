"""Sessions of brokers on the monotonic clock. Pure; time is an argument.

1. Every session counts as fresh at a takeover.
2. No session expires before any broker has reached this controller. Silence of all brokers says
   more about the controller than about them, and fencing would stop a cluster that continues
   without one. Then their time begins. If brokers looked for a controller here while no process
   led, it began earlier: such a broker was last heard then, and all others have been silent since
   the first of them arrived.
3. After a stall of the intake itself, the time of the stall does not count: data in the sockets is
   read before any session expires.
4. A broker whose main loop has been blocked for a whole session counts as dead, even if its
   heartbeat thread reports regularly.
5. A broker that is silent and owes another broker the response to a fetch is suspected: two
   independent observers miss it. It expires after the suspect timeout, which is shorter.

A killed process is noticed sooner: the kernel closes its connections. A broker without any
connection is under suspicion, and expires unless it reconnects within a short grace. A live one
does so at once.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.wire.control import BrokerHeartbeatRequest
from tidemark_operator.listener.standby_discovery import BrokerSearches

#: Seconds in which a broker without any connection may reconnect. It tries after 0.1 and 0.2 s.
GRACE_S = 0.75
#: A broker that was silent before the term has at least this long after the first one reaches it:
#: more than a broker needs that retries every second.
RETURN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Content of a broker's last heartbeat; one with other values is passed on at once."""

    snapshot_controller_epoch: int = -1
    want_shut_down: bool = False
    loop_stalled: bool = False
    #: Digest of the certificates in use (see :class:`tidemark.tls.files.Contexts`).
    certificates: str = ""


@dataclass(slots=True, kw_only=True)
class BrokerSession:
    """One registered broker as the intake knows it."""

    broker_id: int
    broker_epoch: int
    last_seen_s: float
    is_fenced: bool = True
    should_shut_down: bool = False
    beat: Beat = Beat()
    #: Pause between two of its heartbeats, 0 if it has not sent it.
    interval_s: float = 0.0
    #: Brokers that owe it the response to a fetch.
    unresponsive: frozenset[int] = frozenset()
    expired: bool = False
    #: The broker has reached this controller, by any request.
    has_come: bool = False
    #: Open connections over which this registration has spoken, and when the last of them ended.
    connections: int = 0
    lost_s: float | None = None
    #: Secret from the response to the registration, which requests have to show; b"" until then.
    token: bytes = field(default=b"", repr=False)

    def proves(self, token: bytes) -> bool:
        """Return whether this token proves the right to speak for the registration."""
        # Constant time, so that the token cannot be guessed byte by byte.
        return bool(self.token) and hmac.compare_digest(self.token, token)


class BrokerSessions:
    """Sessions of one controller term. Not locked: owned by the intake's thread."""

    def __init__(
        self,
        session_timeout_s: float,
        tick_s: float,
        searches: BrokerSearches | None = None,
        *,
        suspect_timeout_s: float = 0.0,
    ) -> None:
        """Start without sessions.

        ``searches`` names the brokers that looked for a controller before this term.
        ``suspect_timeout_s``: silence after which a broker expires that others miss too, 0 for
        none.
        """
        self.session_timeout_s = session_timeout_s
        self.suspect_timeout_s = suspect_timeout_s
        self._tick_s = tick_s
        self._searches = searches or BrokerSearches()
        self._sessions: dict[int, BrokerSession] = {}
        self._last_tick_s: float | None = None
        #: None: no broker has arrived yet; False: one has, since the last tick; True: time counts.
        self._is_reached: bool | None = None

    def _reached(self) -> None:
        if self._is_reached is None:
            self._is_reached = False

    def open(self, broker_id: int, broker_epoch: int, now_s: float, *, fenced: bool = True) -> None:
        """Open the session of a broker that registered, or was known at the takeover."""
        former = self.get(broker_id, broker_epoch)
        self._sessions[broker_id] = BrokerSession(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            last_seen_s=now_s,
            has_come=self._is_reached is not None,
            is_fenced=fenced,
            connections=0 if former is None else former.connections,
        )

    def give_token(self, broker_id: int, broker_epoch: int, token: bytes) -> bool:
        """Set the secret of a registration; return False if there is no such session any more.

        The secret of a former registration becomes invalid.
        """
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            session.token = token
        return session is not None

    def close(self, broker_id: int) -> None:
        """Close the session of a broker that is deleted or has shut down."""
        self._sessions.pop(broker_id, None)

    def get(self, broker_id: int, broker_epoch: int) -> BrokerSession | None:
        """Return the session of exactly this registration."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return None
        return session

    def alive(self, broker_id: int) -> bool:
        """Return whether the broker, under any epoch, has sent something within a session
        timeout.
        """
        session = self._sessions.get(broker_id)
        return session is not None and not session.expired

    # ---- connections

    def connected(self, broker_id: int, broker_epoch: int) -> bool:
        """Count a connection of a registration; return False if there is no such session."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            return False
        self._reached()
        session.has_come = True
        session.connections += 1
        session.lost_s = None
        return True

    def disconnected(self, broker_id: int, broker_epoch: int, now_s: float) -> None:
        """Count the end of such a connection; with the last of them the grace begins."""
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            session.connections -= 1
            session.lost_s = now_s if session.connections <= 0 else None

    def is_connected(self, broker_id: int) -> bool:
        """Return False only if all connections of the present registration are known to have ended.

        A broker that has not arrived yet (after a takeover) counts as connected.
        """
        session = self._sessions.get(broker_id)
        return session is not None and session.lost_s is None

    def registration_requested(self, broker_id: int, now_s: float) -> None:
        """Note a registration request of a broker, so that its grace does not expire meanwhile.

        It also shows that a broker has reached this controller. That broker may have to wait until
        its former process has expired.
        """
        self._reached()
        session = self._sessions.get(broker_id)
        if session is None:
            return
        if not session.has_come:
            session.has_come, session.last_seen_s = True, now_s
        if session.lost_s is not None:
            session.lost_s = now_s

    # ---- heartbeats and time

    def set_state(
        self, broker_id: int, broker_epoch: int, *, fenced: bool, should_shut_down: bool
    ) -> None:
        """Set the content of the next heartbeat responses.

        A broker that is unfenced is watched again even if its session had expired: its last
        heartbeat may have been decided after that.
        """
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            if session.is_fenced and not fenced:
                session.expired = False
            session.is_fenced = fenced
            session.should_shut_down = should_shut_down

    def heartbeat(
        self, request: BrokerHeartbeatRequest, now_s: float
    ) -> tuple[BrokerSession, bool] | None:
        """Renew a broker's session; return it and whether its state has changed.

        Returns None if there is no session with this broker epoch: the broker has to register
        again.
        """
        session = self.get(request.broker_id, request.broker_epoch)
        if session is None:
            return None
        self._reached()
        session.has_come = True
        stalled = request.loop_age_ms > self.session_timeout_s * 1000
        beat = Beat(
            snapshot_controller_epoch=request.snapshot_controller_epoch,
            want_shut_down=request.want_shut_down,
            loop_stalled=stalled,
            certificates=request.certificates,
        )
        # A heartbeat after the expiry is news as well: the broker is not dead.
        news = beat != session.beat or (session.expired and not stalled)
        session.beat = beat
        session.interval_s = request.interval_ms / 1000
        # Only ids of known brokers are kept, because the peer chooses their number.
        session.unresponsive = frozenset(request.unresponsive) & self._sessions.keys()
        # A blocked main loop does not renew the session.
        if not stalled:
            session.last_seen_s = now_s
            session.expired = False
        return session, news

    def tick(self, now_s: float) -> list[tuple[int, int]]:
        """Return the (broker id, broker epoch) of sessions that expired since the last call.

        Called every ``tick_s``. If a call is late, this process was stalled and may have unread
        heartbeats: no session expires, and every session gets the time of the stall as credit.
        """
        last_s, self._last_tick_s = self._last_tick_s, now_s
        if last_s is None:
            return []
        stall_s = now_s - last_s - self._tick_s
        # This process was stalled: heartbeats may be waiting in the sockets.
        if stall_s > self._tick_s:
            self._credit_stall(stall_s, now_s)
            return []
        # Until the first broker has reached this operator, sessions do not age.
        if not self._is_reached:
            self._begin(now_s)
            return []
        expired = list(self._expired_sessions(now_s))
        for session in expired:
            session.expired = True
        return [(session.broker_id, session.broker_epoch) for session in expired]

    def _begin(self, now_s: float) -> None:
        """Start the time of all sessions when the first broker has reached this controller."""
        if self._is_reached is None:
            return
        self._is_reached = True
        for session in self._sessions.values():
            session.last_seen_s = now_s if session.has_come else self._last_search_s(session, now_s)

    def _last_search_s(self, session: BrokerSession, now_s: float) -> float:
        """Return the start of the session time of a broker that has not arrived yet."""
        if self._searches.since_s is None:
            return now_s
        last_search_s = self._searches.last_s.get(session.broker_id, self._searches.since_s)
        # At least RETURN_S from now remain, even after a long silence.
        return min(now_s, max(last_search_s, now_s + RETURN_S - self.session_timeout_s))

    def _expired_sessions(self, now_s: float) -> Iterable[BrokerSession]:
        for session in self._sessions.values():
            silent = now_s - session.last_seen_s > self.session_timeout_s
            gone = session.lost_s is not None and now_s - session.lost_s > GRACE_S
            if not session.expired and (silent or gone or self._is_missed(session, now_s)):
                yield session

    def _is_missed(self, session: BrokerSession, now_s: float) -> bool:
        """Return whether a broker is silent for the suspect timeout, and another one misses it."""
        suspect_s = self.suspect_timeout_s
        # A broker that was silent before it reached this term has the time of rule 2. One whose
        # heartbeats are rare, or that does not send their interval, is silent all the time.
        if not (
            session.has_come
            and 0 < session.interval_s <= suspect_s / 2
            and now_s - session.last_seen_s > suspect_s
        ):
            return False
        # The other one must have been heard in this time: an old report proves nothing.
        return any(
            session.broker_id in other.unresponsive and now_s - other.last_seen_s <= suspect_s
            for other in self._sessions.values()
            if other is not session
        )

    def _credit_stall(self, stall_s: float, now_s: float) -> None:
        for session in self._sessions.values():
            session.last_seen_s = min(now_s, session.last_seen_s + stall_s)
            if session.lost_s is not None:
                session.lost_s = min(now_s, session.lost_s + stall_s)
