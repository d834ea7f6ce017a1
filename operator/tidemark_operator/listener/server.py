"""Control listener: a thread of its own with its own event loop and listening socket.

Heartbeats are answered here, without the main loop, so that a controller that is busy deciding
expires no broker. Every other request is passed to the main loop and answered when it is done (an
AlterPartition only after its commit). Without a term (this process does not lead, or has not taken
over yet) every request is answered NOT_CONTROLLER. A malformed or oversized frame closes its
connection with one log line.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from tidemark.error_text import error_text
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.tls.private_listener import PrivateListener
from tidemark.wire import control, framing, topics
from tidemark_operator.listener.channel import Channel
from tidemark_operator.listener.connection import Answer, Attached, Intake, serve_requests
from tidemark_operator.listener.frames import (
    Request,
    Response,
    heartbeat_response,
    not_controller,
    stale,
)
from tidemark_operator.listener.sessions import Beat, BrokerSessions
from tidemark_operator.listener.standby_discovery import BrokerSearches, ControllerSearches

logger = logging.getLogger(__name__)

TICK_S = 0.1
TOKEN_BYTES = 16


class ControlHandler(Protocol):
    """Work of the main loop for brokers. Every method runs in the main loop."""

    async def register(
        self, request: control.BrokerRegistrationRequest, *, session_alive: bool, connected: bool
    ) -> control.BrokerRegistrationResponse:
        """Answer a registration after it is persisted.

        ``session_alive``: a process with this id has sent something lately. ``connected``: its
        connections are not known to have ended.
        """

    async def replica_states(
        self, request: control.ReplicaStatesRequest
    ) -> control.ReplicaStatesResponse:
        """Take in a broker's description of its replicas before it is admitted."""

    async def alter_partition(
        self, request: control.AlterPartitionRequest
    ) -> control.AlterPartitionResponse:
        """Answer after the changes are persisted."""

    async def broker_status(
        self, request: control.BrokerStatusRequest
    ) -> control.BrokerStatusResponse:
        """Take in a status report."""

    async def allocate_producer_ids(
        self, request: control.AllocateProducerIdsRequest
    ) -> control.AllocateProducerIdsResponse:
        """Answer after the block is persisted."""

    async def change_topics(
        self, request: topics.ChangeTopicsRequest
    ) -> topics.ChangeTopicsResponse:
        """Answer after the Topic objects are written."""

    def on_attached(self, channel: Channel) -> None:
        """Start an open command connection with a full snapshot."""

    def on_beat(self, broker_id: int, broker_epoch: int, beat: Beat) -> None:
        """Take in a heartbeat with news."""

    def on_expired(self, broker_id: int, broker_epoch: int) -> None:
        """Take in that a session has expired."""


class _Term:
    """State of the intake while this process leads."""

    def __init__(self, controller_epoch: int, sessions: BrokerSessions) -> None:
        self.controller_epoch = controller_epoch
        self.sessions = sessions
        #: Connection of each broker's last registration: its requests are valid on no other.
        self.requests: dict[int, _Peer] = {}


@dataclass(slots=True, eq=False)
class _Peer:
    """Far end of one connection, and the registration that it speaks for."""

    identity: TlsIdentity
    sessions: BrokerSessions | None = None
    registration: tuple[int, int] | None = None
    #: It has received the secret of a session here, or has shown it.
    has_secret: bool = False

    def note_registration(
        self, sessions: BrokerSessions, broker_id: int, broker_epoch: int
    ) -> None:
        """Note that the peer sent a request in the name of a registration."""
        if (self.sessions, self.registration) == (sessions, (broker_id, broker_epoch)):
            return
        self.left(time.monotonic())
        self.has_secret = True
        if sessions.connected(broker_id, broker_epoch):
            self.sessions, self.registration = sessions, (broker_id, broker_epoch)

    def left(self, now_s: float) -> None:
        """Note that the connection ended, or speaks for another registration now."""
        if self.sessions is not None and self.registration is not None:
            self.sessions.disconnected(*self.registration, now_s)
        self.sessions = self.registration = None


class ControlServer:
    """Owner of the thread, the socket and the sessions.

    Methods marked (main) are called from the main loop's thread and only pass work on.
    """

    def __init__(
        self,
        handler: ControlHandler,
        main_loop: asyncio.AbstractEventLoop,
        *,
        files: TlsFiles,
        cluster_id: Callable[[], str | None],
    ) -> None:
        """Prepare the control listener, on which brokers register; it runs in its own thread.

        The thread answers heartbeats itself, so that a busy main loop does not let sessions expire.
        ``handler`` decides everything else in ``main_loop``. ``files`` are the listener's TLS
        certificates. ``cluster_id`` returns the id of the cluster whose brokers are served, None
        without one.
        """
        self._handler = handler
        self._main = main_loop
        self._files = files
        self._cluster_id = cluster_id
        self._loop = asyncio.new_event_loop()  # Event loop of the listener's thread.
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        # State of the control thread, except `searches` and the socket.
        #: None while this operator does not lead.
        self._term: _Term | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: By broker id: the command connection.
        self._channels: dict[int, Channel] = {}
        self._stopping = asyncio.Event()
        #: Limits on the requests of all connections.
        self._intake = Intake()
        #: Brokers that looked for a controller here while it did not lead.
        self.searches = ControllerSearches()
        self._socket: socket.socket | None = None

    # ------------------------------------------------------------ main

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Bind and start the thread; return the bound address (port 0 picks a free one). (main)"""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=256)
        listening.setblocking(False)
        # Bound here, so that an error reaches the caller and not the thread.
        self._socket = listening
        self._thread.start()
        bound = listening.getsockname()
        return str(bound[0]), int(bound[1])

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close every connection and end the thread. (main)"""
        if self._thread.is_alive():
            self._post(self._stopping.set)
            self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def begin_term(
        self,
        controller_epoch: int,
        session_timeout_s: float,
        known: Iterable[tuple[int, int, bool]],
        searches: BrokerSearches,
        *,
        suspect_timeout_s: float,
    ) -> None:
        """Start to serve as the controller. Called in the main loop; takes effect in the thread.

        ``known``: (broker id, broker epoch, fenced) of each registration. The time of their
        sessions restarts now. ``searches``: brokers that looked for a controller here before the
        term. ``suspect_timeout_s``: see :class:`BrokerSessions`.
        """
        brokers = list(known)

        def begin() -> None:
            """Replace the sessions; runs in the listener's thread."""
            sessions = BrokerSessions(
                session_timeout_s, TICK_S, searches, suspect_timeout_s=suspect_timeout_s
            )
            for broker_id, broker_epoch, fenced in brokers:
                sessions.open(broker_id, broker_epoch, time.monotonic(), fenced=fenced)
            # Command connections of a former term carry a former controller epoch.
            self._close_channels()
            self._term = _Term(controller_epoch, sessions)
            self.searches.forget()

        self._post(begin)

    def end_term(self) -> None:
        """Answer NOT_CONTROLLER from now on, and close command connections. (main)"""

        def end() -> None:
            self._term = None
            self._close_channels()

        self._post(end)

    def open_session(self, broker_id: int, broker_epoch: int, *, fenced: bool) -> None:
        """Open the session of a persisted registration. (main)"""
        self._with_sessions(
            lambda sessions: sessions.open(broker_id, broker_epoch, time.monotonic(), fenced=fenced)
        )

    def close_session(self, broker_id: int) -> None:
        """Close the session of a broker that is deleted or has shut down. (main)"""

        def close(sessions: BrokerSessions) -> None:
            sessions.close(broker_id)
            channel = self._channels.pop(broker_id, None)
            if channel is not None:
                channel.close()

        self._with_sessions(close)

    def set_state(
        self, broker_id: int, broker_epoch: int, *, fenced: bool, should_shut_down: bool
    ) -> None:
        """Set the content of the next heartbeat responses. (main)"""
        self._with_sessions(
            lambda sessions: sessions.set_state(
                broker_id, broker_epoch, fenced=fenced, should_shut_down=should_shut_down
            )
        )

    def _with_sessions(self, change: Callable[[BrokerSessions], None]) -> None:
        def run() -> None:
            if self._term is not None:
                change(self._term.sessions)

        self._post(run)

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended
            self._loop.call_soon_threadsafe(call)

    # ------------------------------------------------------------ the control thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        """Accept connections and expire sessions until the listener is stopped."""
        # The session clock and the accept loop both run until `stop` sets the event.
        ticking = asyncio.create_task(self._tick())
        stopping = asyncio.create_task(self._stopping.wait())
        assert self._socket is not None
        self._listener = PrivateListener(
            self._socket, self._files, self._why_not, self._protocol, name="control listener"
        )
        listening = asyncio.create_task(self._listener.run())
        try:
            # The first task that ends stops the listener; an error is raised to the thread's owner.
            await asyncio.wait({ticking, stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (ticking, listening):
                if ended.done():
                    ended.result()
        finally:
            tasks = [ticking, stopping, listening, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            # Without a term there are no sessions to expire.
            if self._term is None:
                continue
            for broker_id, broker_epoch in self._term.sessions.tick(time.monotonic()):
                logger.info("session of broker %d (epoch %d) expired", broker_id, broker_epoch)
                self._notify(self._handler.on_expired, broker_id, broker_epoch)

    def _notify(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the main loop is closed: the process ends
            self._main.call_soon_threadsafe(call, *arguments)

    def _why_not(self, identity: TlsIdentity) -> str | None:
        if identity.cluster_id != self._cluster_id():
            return f"it is {identity}, from another cluster"
        return f"it is {identity}, not a broker" if identity.node_id is None else None

    def _protocol(self, identity: TlsIdentity) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(
            reader, lambda reader, writer: self._accept(identity, reader, writer)
        )

    def _accept(
        self, identity: TlsIdentity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = self._loop.create_task(self._connection(identity, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(identity, ended))

    def _ended(self, identity: TlsIdentity, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._listener.connection_closed(identity)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a control connection failed", exc_info=error)

    async def _connection(
        self, identity: TlsIdentity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection of a broker: first its requests, then commands, until it ends.

        ``identity`` is from the peer's verified TLS certificate.
        """
        address = writer.get_extra_info("peername")
        peer = _Peer(identity)
        try:
            # First the broker requests; after an Attach the same connection carries commands.
            attached = await serve_requests(
                lambda: self._intake.read(reader, proven=peer.has_secret),
                writer,
                lambda request: self._answer(request, peer),
            )
            if attached is not None and (channel := self._attach(attached, reader, writer)):
                await channel.run()
        except framing.FrameError as error:
            logger.warning("closed control connection %s: %s", address, error)
        except (ConnectionError, TimeoutError) as error:
            logger.info("control connection %s ended: %s", address, error_text(error))
        finally:
            # If this was its last connection, the broker's session timeout starts to run.
            peer.left(time.monotonic())
            writer.close()

    # ------------------------------------------------------------ answers

    def _answer(self, request: Request, peer: _Peer) -> Answer:
        """Return the response to one request, or an awaitable for it.

        Raises ``ConnectionAbortedError`` if the peer's certificate is not of the broker in the
        request.
        """
        term = self._term
        # Brokers that look for a controller are alive: the next term counts their time.
        if term is None:
            if peer.identity.node_id is not None:
                self.searches.record(peer.identity.node_id, time.monotonic())
            return not_controller(request)
        # A broker's certificate is valid for its own node id only.
        if request.broker_id != peer.identity.node_id:
            raise ConnectionAbortedError(f"{peer.identity} is not broker {request.broker_id}")
        if isinstance(request, control.BrokerRegistrationRequest):
            return self._register(term, request, peer)
        if isinstance(request, control.ReplicaStatesRequest):
            return self._in_main(self._handler.replica_states(request))
        # Everything else needs a session, and its secret.
        session = term.sessions.get(request.broker_id, request.broker_epoch)
        if session is None or not session.proves(request.session_token):
            return stale(request, term.controller_epoch)
        peer.note_registration(term.sessions, request.broker_id, request.broker_epoch)
        match request:
            case control.BrokerHeartbeatRequest():
                return self._heartbeat(term, request)
            case control.AttachRequest():
                return control.AttachResponse(error_code=0, controller_epoch=term.controller_epoch)
            case control.AlterPartitionRequest():
                # These two change the cluster's state, so they are valid on the latest connection
                # only.
                self._check_present(term, request.broker_id, peer)
                return self._in_main(self._handler.alter_partition(request))
            case control.BrokerStatusRequest():
                self._check_present(term, request.broker_id, peer)
                return self._in_main(self._handler.broker_status(request))
            case control.AllocateProducerIdsRequest():
                return self._in_main(self._handler.allocate_producer_ids(request))
            case topics.ChangeTopicsRequest():
                return self._in_main(self._handler.change_topics(request))

    @staticmethod
    def _check_present(term: _Term, broker_id: int, peer: _Peer) -> None:
        """Raise ``ConnectionAbortedError`` for a request on a former connection of the broker.

        The broker has repeated it on the new connection, perhaps with another answer. A refused
        proposal must not take effect after that.
        """
        if term.requests.get(broker_id, peer) is not peer:
            raise ConnectionAbortedError(f"another process has registered as broker {broker_id}")

    def _register(
        self, term: _Term, request: control.BrokerRegistrationRequest, peer: _Peer
    ) -> Answer:
        """Have the main loop decide a registration; return an awaitable for the response."""
        sessions, broker_id = term.sessions, request.broker_id
        alive, connected = sessions.alive(broker_id), sessions.is_connected(broker_id)
        sessions.registration_requested(broker_id, time.monotonic())
        decided = self._in_main(
            self._handler.register(request, session_alive=alive, connected=connected)
        )
        return self._loop.create_task(self._registered(term, broker_id, peer, decided))

    @staticmethod
    async def _registered(
        term: _Term, broker_id: int, peer: _Peer, decided: Awaitable[Response]
    ) -> Response:
        """Wait for the decision about a registration, and give the broker its session secret.

        From now on only ``peer``'s connection may change the cluster's state for this broker.
        Raises ``ConnectionAbortedError`` if the broker was unregistered meanwhile.
        """
        answer = await decided
        if isinstance(answer, control.BrokerRegistrationResponse) and not answer.error_code:
            # A fresh secret invalidates requests of a former registration.
            token = secrets.token_bytes(TOKEN_BYTES)
            if not term.sessions.give_token(broker_id, answer.broker_epoch, token):
                raise ConnectionAbortedError(f"broker {broker_id} is no longer registered")
            term.requests[broker_id] = peer
            peer.has_secret = True
            suspect_ms = round(term.sessions.suspect_timeout_s * 1000)
            return dataclasses.replace(answer, session_token=token, suspect_timeout_ms=suspect_ms)
        return answer

    def _in_main(self, work: Coroutine[Any, Any, Response]) -> Awaitable[Response]:
        try:
            future: concurrent.futures.Future[Response]
            future = asyncio.run_coroutine_threadsafe(work, self._main)
        except RuntimeError as error:
            # The main loop is closed, so the coroutine would never run.
            work.close()
            raise ConnectionAbortedError("the operator is stopping") from error
        return asyncio.wrap_future(future)

    def _heartbeat(
        self, term: _Term, request: control.BrokerHeartbeatRequest
    ) -> control.BrokerHeartbeatResponse:
        """Renew a broker's session, and return the broker's present state.

        The response says whether the broker is fenced and whether it may shut down.
        """
        taken = term.sessions.heartbeat(request, time.monotonic())
        # No session has this broker epoch, so the broker has to register again.
        if taken is None:
            return heartbeat_response(ErrorCode.stale_broker_epoch, term.controller_epoch)
        session, news = taken
        # The main loop receives changes only, not every heartbeat.
        if news:
            self._notify(
                self._handler.on_beat, session.broker_id, session.broker_epoch, session.beat
            )
        return heartbeat_response(
            ErrorCode.none,
            term.controller_epoch,
            is_fenced=session.is_fenced,
            should_shut_down=session.should_shut_down,
        )

    def _attach(
        self, attached: Attached, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Channel | None:
        """Register a connection as its broker's command connection after an Attach.

        Returns None if the term that accepted the Attach has ended meanwhile.
        """
        request = attached.request
        if self._term is None or self._term.controller_epoch != attached.controller_epoch:
            return None
        channel = Channel(
            request.broker_id, request.broker_epoch, reader, writer, request.last_command
        )
        # A broker has one command connection, the latest.
        previous = self._channels.get(request.broker_id)
        if previous is not None:
            previous.close()
        self._channels[request.broker_id] = channel
        self._notify(self._handler.on_attached, channel)
        return channel

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
