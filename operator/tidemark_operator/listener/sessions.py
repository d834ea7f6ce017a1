"""Broker sessions: who has been heard of, on the monotonic clock. Pure; time is an argument.

Four rules stand here. Every session counts as fresh at a take-over. Nobody expires before any
broker has reached this controller: silence of all of them says more about it than about them, and
whoever fenced them would stop a cluster that goes on without a controller. Then their time begins,
unless it had begun before: of brokers that have looked for a controller here while nobody led, each
has been heard of, and all others have been silent since the first of them came. After a stall
of the intake itself the time of the stall does not count: what lies in the sockets is read before
anybody is expired. And a broker whose main loop has not turned for a whole session counts as dead,
however regularly its heartbeat thread reports.

A killed process is noticed sooner: the kernel closes its connections. A broker all of whose
connections have ended is under suspicion, and is out unless it comes back within a short grace; a
live one does so at once.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark_operator.listener.standby_discovery import Looked

#: How long a broker without any connection may take to come back.
GRACE_S = 1.5
#: Whoever was silent before the term has at least as long from the first on that reaches it: more
#: than a broker needs that asks every second.
RETURN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What the last heartbeat of a broker said; one with other values is passed on at once."""

    snapshot_controller_epoch: int = -1
    want_shut_down: bool = False
    loop_stalled: bool = False
    #: Of the certificates that it uses (see :class:`tidemark.tls.files.Contexts`).
    certificates: str = ""


@dataclass(slots=True, kw_only=True)
class Session:
    """One registered broker as the intake knows it."""

    broker_id: int
    broker_epoch: int
    last_seen_s: float
    is_fenced: bool = True
    should_shut_down: bool = False
    beat: Beat = Beat()
    expired: bool = False
    #: Its broker has reached this controller, in whatever way.
    has_come: bool = False
    #: Open connections over which this registration has spoken, and when the last of them ended.
    connections: int = 0
    lost_s: float | None = None
    #: What this registration was answered with, and has to show; b"" until then.
    token: bytes = field(default=b"", repr=False)

    def proves(self, token: bytes) -> bool:
        """Does whoever shows this token speak for the registration?"""
        return bool(self.token) and hmac.compare_digest(self.token, token)


class Sessions:
    """The sessions of one controller term. Not locked: owned by the intake's thread."""

    def __init__(
        self, session_timeout_s: float, tick_s: float, looked: Looked | None = None
    ) -> None:
        """``looked``: who has looked for a controller before this term."""
        self.session_timeout_s = session_timeout_s
        self._tick_s = tick_s
        self._looked = looked or Looked()
        self._sessions: dict[int, Session] = {}
        self._last_tick_s: float | None = None
        #: None: no broker has been heard of; False: one has, since the last tick.
        self._is_reached: bool | None = None

    def _reached(self) -> None:
        if self._is_reached is None:
            self._is_reached = False

    def open(self, broker_id: int, broker_epoch: int, now_s: float, *, fenced: bool = True) -> None:
        """A broker registered, or was known at the take-over: fresh from now on."""
        former = self.get(broker_id, broker_epoch)
        self._sessions[broker_id] = Session(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            last_seen_s=now_s,
            has_come=self._is_reached is not None,
            is_fenced=fenced,
            connections=0 if former is None else former.connections,
        )

    def give_token(self, broker_id: int, broker_epoch: int, token: bytes) -> bool:
        """The registration is answered with this secret; a former one holds no more. False: there
        is no such session by now."""
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            session.token = token
        return session is not None

    def close(self, broker_id: int) -> None:
        """The broker's object is gone, or it has shut down."""
        self._sessions.pop(broker_id, None)

    def get(self, broker_id: int, broker_epoch: int) -> Session | None:
        """The session of exactly this registration."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return None
        return session

    def alive(self, broker_id: int) -> bool:
        """Whether the broker, under whatever epoch, has been heard of within a session."""
        session = self._sessions.get(broker_id)
        return session is not None and not session.expired

    # ---- connections

    def connected(self, broker_id: int, broker_epoch: int) -> bool:
        """A connection has spoken for a registration; False: there is no such session."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            return False
        self._reached()
        session.has_come = True
        session.connections += 1
        session.lost_s = None
        return True

    def disconnected(self, broker_id: int, broker_epoch: int, now_s: float) -> None:
        """Such a connection has ended; with the last of them the grace begins."""
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            session.connections -= 1
            session.lost_s = now_s if session.connections <= 0 else None

    def is_connected(self, broker_id: int) -> bool:
        """False only where all connections of the present registration are known to have ended:
        one that has not come yet (after a take-over) says nothing."""
        session = self._sessions.get(broker_id)
        return session is not None and session.lost_s is None

    def knocked(self, broker_id: int, now_s: float) -> None:
        """A registration of this id came in: the grace does not run out while it is decided. And
        somebody has reached this controller, who may have to wait until a former process of it has
        expired."""
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
        """What the next heartbeats are to be answered with. Whoever is unfenced is watched, also if
        its session had run out: its last words may have been decided behind that."""
        session = self.get(broker_id, broker_epoch)
        if session is not None:
            if session.is_fenced and not fenced:
                session.expired = False
            session.is_fenced = fenced
            session.should_shut_down = should_shut_down

    def heartbeat(
        self,
        broker_id: int,
        broker_epoch: int,
        now_s: float,
        *,
        snapshot_controller_epoch: int,
        want_shut_down: bool,
        loop_age_s: float,
        certificates: str = "",
    ) -> tuple[Session, bool] | None:
        """Take a heartbeat in; the session and whether it says anything new. None: the broker
        has to register again."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            return None
        self._reached()
        session.has_come = True
        stalled = loop_age_s > self.session_timeout_s
        beat = Beat(
            snapshot_controller_epoch=snapshot_controller_epoch,
            want_shut_down=want_shut_down,
            loop_stalled=stalled,
            certificates=certificates,
        )
        news = beat != session.beat or (session.expired and not stalled)
        session.beat = beat
        if not stalled:
            session.last_seen_s = now_s
            session.expired = False
        return session, news

    def tick(self, now_s: float) -> list[tuple[int, int]]:
        """Called every ``tick_s``: the (broker id, broker epoch) that ran out since the last
        tick. After a late tick nobody expires, and the time of the stall is given back."""
        last_s, self._last_tick_s = self._last_tick_s, now_s
        if last_s is None:
            return []
        stall_s = now_s - last_s - self._tick_s
        if stall_s > self._tick_s:
            self._give_back(stall_s, now_s)
            return []
        if not self._is_reached:
            self._begin(now_s)
            return []
        return [
            (session.broker_id, session.broker_epoch)
            for session in self._running_out(now_s)
            if self._expire(session)
        ]

    def _begin(self, now_s: float) -> None:
        """With the first that reaches this controller the time of all others begins."""
        if self._is_reached is None:
            return
        self._is_reached = True
        for session in self._sessions.values():
            session.last_seen_s = now_s if session.has_come else self._heard_before(session, now_s)

    def _heard_before(self, session: Session, now_s: float) -> float:
        """When a broker was heard of that has not come yet, as far as that counts."""
        if self._looked.since_s is None:
            return now_s
        heard_s = self._looked.last_s.get(session.broker_id, self._looked.since_s)
        return min(now_s, max(heard_s, now_s + RETURN_S - self.session_timeout_s))

    def _running_out(self, now_s: float) -> Iterable[Session]:
        for session in self._sessions.values():
            silent = now_s - session.last_seen_s > self.session_timeout_s
            gone = session.lost_s is not None and now_s - session.lost_s > GRACE_S
            if not session.expired and (silent or gone):
                yield session

    @staticmethod
    def _expire(session: Session) -> bool:
        session.expired = True
        return True

    def _give_back(self, stall_s: float, now_s: float) -> None:
        for session in self._sessions.values():
            session.last_seen_s = min(now_s, session.last_seen_s + stall_s)
            if session.lost_s is not None:
                session.lost_s = min(now_s, session.lost_s + stall_s)
