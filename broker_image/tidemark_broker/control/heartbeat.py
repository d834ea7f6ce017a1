"""Heartbeats from a separate thread, with the age of the event loop's last turn.

A busy loop must not cost the session, but a loop that has stopped must. The thread therefore
reports how long ago the loop last turned, and the controller decides. A broken connection is
replaced at once, also between two heartbeats, because a controller that sees it close suspects that
the process is dead.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tidemark.tls.dialing import Dialer
from tidemark.wire import control
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_broker.replication.stall_detection import Stall

logger = logging.getLogger(__name__)

#: Fine enough for sessions of seconds. Each tick wakes an idle broker.
_TICK_S = 0.2
_MS_MAX = 2**31 - 1
#: Age of the loop's last turn from which the loop counts as blocked.
_BLOCKED_MS = 500
_RETRY_S = 0.2
#: Interval while unfencing is expected, which may happen at any moment.
SOON_S = 0.5
_ANSWER_BYTES_MAX = 1024 * 1024


class LoopClock:
    """Time of the event loop's last iteration; updated on the loop, read from any thread.

    Each update is also passed to ``stall``, which detects that this process was paused for so long
    that another leader may have been elected.
    """

    def __init__(self, stall: Stall | None = None) -> None:
        self.stall = Stall() if stall is None else stall
        self.turned_s = time.monotonic()

    def age_ms(self) -> int:
        """Age of the last turn in ms."""
        return min(max(0, int((time.monotonic() - self.turned_s) * 1000)), _MS_MAX)

    @property
    def is_blocked(self) -> bool:
        """Return whether the loop has not turned for a while, so what it knows may be outdated."""
        return self.age_ms() > _BLOCKED_MS

    async def run(self) -> None:
        """Update the clock until cancelled."""
        while True:
            self.turned_s = time.monotonic()
            self.stall.turned(self.turned_s)
            await asyncio.sleep(_TICK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatTarget:
    """Destination of heartbeats, identity, and the controller's timeouts.

    ``suspect_timeout_s``: silence after which the controller fences this broker if another one
    cannot fetch from it either.
    """

    host: str
    port: int
    broker_id: int
    broker_epoch: int
    session_token: bytes
    session_timeout_s: float
    suspect_timeout_s: float = inf
    dialer: Dialer

    @property
    def lease_s(self) -> float:
        """Silence in seconds after which the controller may fence this broker."""
        return min(self.session_timeout_s, self.suspect_timeout_s)

    @property
    def interval_s(self) -> float:
        """Pause between two heartbeats in seconds."""
        return self.lease_s / 4

    @property
    def answer_s(self) -> float:
        """Time to wait for a response in seconds."""
        return self.session_timeout_s / 4


class HeartbeatThread:
    """Thread that sends the heartbeats of one session to the controller.

    ``answered`` is called with each response, and ``lost`` with the reason if the controller
    stopped answering, both on the thread of the event loop. ``snapshot_controller_epoch``,
    ``want_shut_down`` and ``unresponsive`` may be set from the loop at any time. :meth:`kick` sends
    the next heartbeat at once.
    """

    def __init__(
        self,
        target: HeartbeatTarget,
        clock: LoopClock,
        *,
        answered: Callable[[control.BrokerHeartbeatResponse], None],
        lost: Callable[[str], None],
    ) -> None:
        """Create the heartbeat thread of one session. :meth:`start` sends the first heartbeat.

        Must be called on the event loop that the callbacks are to run on.
        """
        self._target = target
        self._clock = clock
        self._answered = answered
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        # A socket pair, because the thread waits for it and for the connection at the same time.
        self._kicks, self._kicked = socket.socketpair()
        self._kicks.setblocking(False)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        #: Controller epoch of the last full snapshot that was applied in this session, -1 for none.
        #: The controller unfences the broker only after it.
        self.snapshot_controller_epoch = -1
        #: True to request that the controller moves leaders away (controlled shutdown).
        self.want_shut_down = False
        #: Leaders that owe this broker the response to a fetch.
        self.unresponsive: tuple[int, ...] = ()
        #: As in the last response.
        self._is_fenced = True

    def start(self) -> None:
        """Start the thread; the first heartbeat is sent at once."""
        self._thread.start()

    def kick(self) -> None:
        """Send the next heartbeat now."""
        with contextlib.suppress(OSError):  # enough kicks are queued, or the thread has ended
            self._kicks.send(b"!")

    def stop(self) -> None:
        """Signal the thread to end, at the latest after its request's time-out."""
        self._stopping.set()
        self.kick()

    def join(self) -> None:
        """Wait until the thread has ended (blocks)."""
        self._thread.join()

    def _run(self) -> None:
        with self._kicks, self._kicked:
            self._beat_until_stopped()

    def _beat_until_stopped(self) -> None:
        """Send heartbeats, over new connections if necessary, until stopped.

        Reports ``lost`` after half a session timeout without a response. The other half is left for
        a new session, before the controller fences the broker.
        """
        last_answer_s = time.monotonic()
        while not self._stopping.is_set():
            began_s = time.monotonic()
            # An attempt counts, too: an unreachable controller is no pause of this process.
            self._clock.stall.beat(began_s)
            try:
                with self._connect() as connection:
                    while not self._stopping.is_set():
                        sent_s = time.monotonic()
                        self._clock.stall.beat(sent_s)
                        self._beat(connection, sent_s)
                        last_answer_s = time.monotonic()
                        # Wakes at a kick, and at once if the controller closes the connection. The
                        # interval counts from the request, so a slow response delays no heartbeat.
                        left_s = sent_s + self._pause_s() - last_answer_s
                        connection.wait(self._kicked, max(0.0, left_s))
            except (OSError, FrameError) as error:
                if self._stopping.is_set():
                    return
                logger.info("heartbeat failed: %s", error)
                if time.monotonic() - last_answer_s > self._target.session_timeout_s / 2:
                    self._post(self._lost, f"no heartbeat was answered: {error}")
                    return
                # A connection that fails immediately must not be retried in a busy loop.
                if time.monotonic() - began_s < _RETRY_S:
                    self._stopping.wait(min(_RETRY_S, self._target.interval_s))

    def _pause_s(self) -> float:
        interval_s = self._target.interval_s
        awaits_word = self._is_fenced and self.snapshot_controller_epoch >= 0
        return min(SOON_S, interval_s) if awaits_word and not self.want_shut_down else interval_s

    def _connect(self) -> BlockingConnection:
        return BlockingConnection(
            self._target.host,
            self._target.port,
            client_id=f"broker-{self._target.broker_id}-heartbeat",
            timeout_s=self._target.answer_s,
            frame_bytes_max=_ANSWER_BYTES_MAX,
            dialer=self._target.dialer,
        )

    def _beat(self, connection: BlockingConnection, sent_s: float) -> None:
        """Send one heartbeat, wait for its response, and pass that to the event loop.

        ``sent_s`` is the present time. The heartbeat reports the age of the event loop's last
        iteration (``loop_age_ms``). The controller fences a broker whose loop has stopped although
        this thread still runs.
        """
        answer = connection.request(
            control.BrokerHeartbeatRequest(
                broker_id=self._target.broker_id,
                broker_epoch=self._target.broker_epoch,
                session_token=self._target.session_token,
                snapshot_controller_epoch=self.snapshot_controller_epoch,
                loop_age_ms=self._clock.age_ms(),
                want_shut_down=self.want_shut_down,
                certificates=self._target.dialer.files.contexts().digest,
                interval_ms=round(self._target.interval_s * 1000),
                # A blocked loop cannot withdraw its reports.
                unresponsive=() if self._clock.is_blocked else self.unresponsive,
            ),
            control.BrokerHeartbeatResponse,
            self._target.answer_s,
        )
        # A controller that rejects the heartbeat does not keep this broker.
        if not answer.error_code:
            self._clock.stall.answered(sent_s)
        # Read by ``_pause_s``: heartbeats are more frequent while unfencing is expected.
        self._is_fenced = answer.is_fenced
        self._post(self._answered, answer)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stopping.set()  # the loop is closed: the process ends
