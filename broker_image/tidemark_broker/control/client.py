"""Session with the leading controller, and its renewal.

A session consists of a registration, an attached command connection, a heartbeat thread, and the
tasks that report and propose. If one of them ends, the session ends. Then the broker looks for the
leading controller again (:mod:`~tidemark_broker.control.controller_discovery`), after a pause that
grows while sessions keep failing. The pause is short while the controller waits for the end of this
broker's previous process. Between sessions the broker continues with the state that it received
last. A broker whose disk lost records must not answer for its ISRs. It registers as a new process,
without the proof of a clean shutdown.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import inf

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.tls import identity as tls_identity
from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError
from tidemark_broker.control.commands import LAST_COMMAND, CommandServer
from tidemark_broker.control.controller_discovery import (
    DIAL_S,
    Address,
    ControllerFinder,
    FoundController,
)
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.heartbeat import HeartbeatTarget, HeartbeatThread, LoopClock
from tidemark_broker.control.isr_changes import IsrChanges
from tidemark_broker.control.producer_id_blocks import allocate_blocks
from tidemark_broker.control.replica_states import pages
from tidemark_broker.control.session import (
    ControllerRefused,
    ControllerSession,
    NotController,
    PreviousProcessAlive,
    SessionEnded,
    check,
)
from tidemark_broker.control.status import StatusReporter
from tidemark_broker.log import StorageError
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.tasks import cancel
from tidemark_broker.topic_changes.forwarder import ControllerLink

logger = logging.getLogger(__name__)

#: Time-out of one request to the controller.
_TIMEOUT_S = 10.0
#: Pauses before the next session: the first one, the longest one, and the one while the previous
#: process of this broker still counts as alive.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0
_FORMER_PROCESS_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Identity of this process."""

    broker_id: int
    cluster_id: str
    incarnation_id: uuid.UUID
    directory_id: uuid.UUID
    rack: str | None


class ControlClient:
    """Client side of the session between this broker and the leading controller of the operator.

    Run :meth:`run` in a task. ``listeners`` returns the advertised endpoints with the ports that
    were bound. ``storage_error`` and ``directory_error`` return the current error text for
    ``BrokerStatus``, "" for none. ``clean_broker_epoch`` is the broker epoch of the previous run if
    that ended with a clean shutdown, else -1.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        addresses: tuple[Address, ...],
        *,
        tls: TlsFiles,
        listeners: Callable[[], tuple[control.Endpoint, ...]],
        manager: ReplicaManager,
        commands: CommandServer,
        epoch: ControllerEpoch,
        isr_changes: IsrChanges,
        producer_ids: ProducerIds,
        clock: LoopClock,
        storage_error: Callable[[], str],
        directory_error: Callable[[], str],
        clean_broker_epoch: int,
    ) -> None:
        """Create the client without a session. :meth:`run` opens sessions."""
        self._identity = identity
        # Every controller replica has an address. The finder returns the one that leads.
        self._finder = ControllerFinder(
            identity.broker_id, addresses, lambda address: self._connect(address, "requests")
        )
        self._dialer = Dialer(files=tls, expected=tls_identity.TlsIdentity(identity.cluster_id))
        #: Secret of the current registration, which authenticates every later request of the
        #: session.
        self._session_token = b""
        self._listeners = listeners
        self._manager = manager
        self._commands = commands
        self._epoch = epoch
        self._isr_changes = isr_changes
        self._producer_ids = producer_ids
        self._clock = clock
        self._storage_error = storage_error
        self._directory_error = directory_error
        #: Broker epoch that the next registration presents as proof that no records were lost, -1
        #: for none. With the proof the broker keeps its place in the ISRs.
        self._previous_broker_epoch = clean_broker_epoch
        #: True from a loss of appended records until the controller has registered the new process
        #: id.
        self._has_lost_records = False
        self._heartbeat: HeartbeatThread | None = None
        #: Fails with the error that ends the current session. None before the first session.
        self._ended: asyncio.Future[None] | None = None
        #: Start of the current session, and of the session whose heartbeats are being sent.
        self._session_began_s = self._heartbeat_of_s = time.monotonic()
        #: Last logged problem, so that each new one is logged once and not at every attempt.
        self._last_problem = ""
        #: Address at which the last attempt created no session.
        self._last_failed: Address | None = None
        #: Epoch of the current registration, -1 before the first one.
        self.broker_epoch = -1
        #: True while the controller excludes this broker from leadership and from the clients'
        #: metadata.
        self.fenced = True
        #: True while a session exists.
        self.connected = False
        #: The current session, for requests over another connection.
        self.link: ControllerLink | None = None
        #: True once a controlled shutdown was requested. Each heartbeat repeats the request.
        self.want_shut_down = False
        #: Set when the controller unfences the broker for the first time.
        self.unfenced = asyncio.Event()
        #: Set once the controller permits the shutdown, usually after all leaders have moved.
        self.may_shut_down = asyncio.Event()

    # ------------------------------------------------------------ sessions

    async def run(self) -> None:
        """Register with the leading controller and keep a session with it, until cancelled.

        After each session the leader is looked up again, since another controller may lead by then.
        """
        clock = asyncio.get_running_loop().time
        backoff = Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        while True:
            # The connection to the leading controller. Waits without limit while no controller
            # leads.
            found = await self._finder.find(last=self._last_failed)
            began_s = clock()
            error = await self._try(found)
            # The previous process expires within one session, so a short constant pause suffices.
            if isinstance(error, PreviousProcessAlive):
                self._last_failed = None
                await asyncio.sleep(_FORMER_PROCESS_PAUSE_S)
                continue
            # A session that lasted for a while was healthy, so the next failure starts with a short
            # pause.
            if clock() - began_s > _LONGEST_PAUSE_S:
                backoff = backoff.succeeded()
            # The end of a session always counts as a failure, because a healthy session has no end.
            backoff = backoff.failed(clock())
            await asyncio.sleep(backoff.until_s - clock())

    async def _try(self, found: FoundController) -> Exception | None:
        """Run one session, log its end, and return the error that ended it.

        Never raises except on cancellation, so that the caller only has to choose a pause.
        """
        address = found.address
        try:
            await self._session(found)
        # Normal during a change of the controller, so it is not a warning.
        except NotController as error:
            logger.debug("%s:%d: %s", *address, error)
            return error
        except (SessionEnded, OSError, TimeoutError, FrameError, StorageError) as error:
            self._note_problem(address, error)
            return error
        except Exception as error:
            logger.exception("the session with the controller at %s:%d failed", *address)
            return error
        # The links of this session must not be used after it.
        finally:
            self.connected = False
            self.link = None
        return None

    def _note_problem(self, address: Address, error: Exception) -> None:
        """Log each new problem once, not each attempt."""
        problem = f"controller at {address[0]}:{address[1]}: {error or type(error).__name__}"
        if self.connected or problem != self._last_problem:
            logger.warning("%s", problem)
        self._last_problem = problem

    async def _session(self, found: FoundController) -> None:
        """Open one session and serve it until it ends: register, attach commands, start heartbeats.

        ``found`` contains the address of the leading controller and an open connection for this
        broker's requests. A second connection carries the controller's commands. Heartbeats use a
        third one, in a thread. Raises the error that ended the session.
        """
        self._session_began_s = time.monotonic()
        address, requests = found
        # Set before anything can fail: discovery then tries the other addresses first.
        self._last_failed = address
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(requests.close)
            # Registration first: it returns the epoch and token with which the commands are
            # attached.
            timeouts_s = await self._register(requests)
            commands = await self._connect(address, "commands")
            stack.push_async_callback(commands.close)
            await self._attach(commands)
            # The future exists before the heartbeats, which may end the session at once.
            self._ended = asyncio.get_running_loop().create_future()
            # A disk may have failed while the registration was in progress. Its proof is void then.
            if self._has_lost_records:
                raise SessionEnded("records were lost during the registration")
            stack.callback(self._stop_heartbeat, self._start_heartbeat(address, *timeouts_s))
            # From here on the session counts as established.
            self.connected = True
            self._last_failed = None
            self.link = self._link_to(address)
            self._last_problem = ""
            await self._serve(requests, commands, self._ended)

    def _link_to(self, address: Address) -> ControllerLink:
        return ControllerLink(
            connect=lambda: self._connect(address, "changes"),
            broker_id=self._identity.broker_id,
            broker_epoch=self.broker_epoch,
            token=self._session_token,
        )

    async def _connect(self, address: Address, purpose: str) -> KafkaConnection:
        return await KafkaConnection.connect(
            *address,
            client_id=f"broker-{self._identity.broker_id}-{purpose}",
            timeout_s=DIAL_S,
            dialer=self._dialer,
        )

    async def _serve(
        self,
        requests: KafkaConnection,
        commands: KafkaConnection,
        ended: "asyncio.Future[None]",
    ) -> None:
        """Run the tasks of an established session until the first ends, and raise its error.

        ``requests`` carries this broker's requests (ISR changes, producer ids, status),
        ``commands`` those of the controller. ``ended`` fails when the heartbeat thread reports the
        end of the session.
        """
        session = ControllerSession(
            self._identity.broker_id, self.broker_epoch, self._session_token
        )
        reporter = StatusReporter(self._manager, self._storage_error, self._directory_error)
        # A failed or recovered disk is reported at once, because the controller then moves leaders.
        self._manager.context.failures.changed = reporter.kick
        await first_of(
            self._commands.run(commands, session.broker_epoch),
            self._isr_changes.run(requests, session),
            allocate_blocks(self._producer_ids, requests, session),
            reporter.run(requests, session),
            ended,
        )

    async def _register(self, connection: KafkaConnection) -> tuple[float, float]:
        """Register this broker process with the controller.

        Return the session timeout and the suspect timeout in seconds, infinite for none. The
        response contains the broker epoch and the token of the session. Raises
        :class:`PreviousProcessAlive`, :class:`ControllerRefused` or :class:`SessionEnded` if the
        broker cannot join this controller.
        """
        me = self._identity
        answer = await self._request_registration(connection, me)
        # The controller was restored without its own state. It first collects the partition states
        # that the brokers have stored, and only then accepts a registration. Therefore the request
        # is sent twice.
        if answer.wants_states:
            await self._send_states(connection, me)
            answer = await self._request_registration(connection, me)
        # 41 is NOT_CONTROLLER, which the check below turns into a retry elsewhere.
        if answer.error_code and answer.error_message and answer.error_code != 41:
            former = answer.error_code == int(ErrorCode.duplicate_broker_registration.value)
            kind = PreviousProcessAlive if former else ControllerRefused
            if kind is ControllerRefused and self.want_shut_down:
                # If its Broker object is deleted, this controller moves no leaders for it.
                self.may_shut_down.set()
            raise kind(f"registration refused: {answer.error_message}")
        check(answer.error_code, "registration")
        # A controller with an older epoch has been superseded without noticing. It must not be
        # obeyed.
        if not await self._epoch.accept(answer.controller_epoch):
            raise SessionEnded(
                f"controller epoch {answer.controller_epoch} is older than {self._epoch.highest}"
            )
        # ``records_lost`` replaces the identity. The registration was then made with a void proof.
        if self._identity is not me:
            raise SessionEnded("records were lost during the registration")
        self._session_token = answer.session_token
        self._note_registration(answer.broker_epoch, connection.peer)
        suspect_s = max(answer.suspect_timeout_ms, 1000) / 1000
        return (
            max(answer.session_timeout_ms, 1000) / 1000,
            suspect_s if answer.suspect_timeout_ms else inf,
        )

    async def _request_registration(
        self, connection: KafkaConnection, me: ProcessIdentity
    ) -> control.BrokerRegistrationResponse:
        """Send one BrokerRegistration request for the process ``me`` and return the response.

        The caller passes the identity, so that a repetition presents the same process although
        ``records_lost`` may have replaced ``self._identity`` meanwhile.
        """
        # The highest controller epoch and its last commit tell a restored controller how old its
        # state is.
        return await connection.request(
            control.BrokerRegistrationRequest(
                broker_id=me.broker_id,
                cluster_id=me.cluster_id,
                incarnation_id=me.incarnation_id,
                directory_id=me.directory_id,
                previous_broker_epoch=self._previous_broker_epoch,
                highest_controller_epoch=self._epoch.highest,
                rack=me.rack,
                listeners=self._listeners(),
                has_states=True,
                highest_commit=self._epoch.commit,
            ),
            control.BrokerRegistrationResponse,
            _TIMEOUT_S,
        )

    async def _send_states(self, connection: KafkaConnection, me: ProcessIdentity) -> None:
        """Send the partition states that this broker has stored, to a controller that lost its own.

        The states are sent in pages. The controller elects no leaders before it has the states of
        the brokers.
        """
        for number, page in enumerate(await pages(self._manager)):
            request = control.ReplicaStatesRequest(
                broker_id=me.broker_id,
                incarnation_id=me.incarnation_id,
                page=number,
                is_last=page.is_last,
                topics=page.topics,
            )
            answer = await connection.request(request, control.ReplicaStatesResponse, _TIMEOUT_S)
            check(answer.error_code, "ReplicaStates")

    def _note_registration(self, broker_epoch: int, peer: str) -> None:
        if broker_epoch != self.broker_epoch:
            logger.info("registered with %s under broker epoch %d", peer, broker_epoch)
        self.broker_epoch = broker_epoch
        # This process has lost nothing, so its epoch is sufficient proof for the next session.
        self._previous_broker_epoch = broker_epoch
        if self._has_lost_records:
            self._has_lost_records = False
            self._manager.on_reregistration()

    # ------------------------------------------------------------ lost records

    def records_lost(self) -> None:
        """End the session after a disk lost appended records. The next session has no proof."""
        self._identity = replace(self._identity, incarnation_id=uuid.uuid4())
        self._previous_broker_epoch = -1
        self._has_lost_records = True
        self._end_session(SessionEnded("records were lost: registering again without proof"))

    @property
    def proven_broker_epoch(self) -> int:
        """Broker epoch to store as proof of a clean shutdown.

        -1 from a loss of records until the next registration, because the controller must not let
        this broker keep its place in the ISRs.
        """
        return -1 if self._has_lost_records else self.broker_epoch

    async def _attach(self, connection: KafkaConnection) -> None:
        answer = await connection.request(
            control.AttachRequest(
                broker_id=self._identity.broker_id,
                broker_epoch=self.broker_epoch,
                session_token=self._session_token,
                last_command=LAST_COMMAND,
            ),
            control.AttachResponse,
            _TIMEOUT_S,
        )
        check(answer.error_code, "attach")

    # ------------------------------------------------------------ heartbeats

    def _start_heartbeat(
        self, address: Address, session_timeout_s: float, suspect_timeout_s: float
    ) -> HeartbeatThread:
        """Start and return the thread that sends the heartbeats of the session just registered.

        ``address`` is that of the controller. The caller stops the thread at the end of the
        session.
        """
        target = HeartbeatTarget(
            host=address[0],
            port=address[1],
            broker_id=self._identity.broker_id,
            broker_epoch=self.broker_epoch,
            session_token=self._session_token,
            session_timeout_s=session_timeout_s,
            suspect_timeout_s=suspect_timeout_s,
            dialer=self._dialer,
        )
        thread = HeartbeatThread(
            target,
            self._clock,
            answered=lambda answer: self._heartbeat_answered(thread, answer),
            lost=lambda reason: self._heartbeat_lost(thread, reason),
        )
        # A shutdown that was requested before this session continues in it.
        thread.want_shut_down = self.want_shut_down
        self._heartbeat = thread
        # Stall detection compares this start time with the time at which a stalled loop woke up.
        self._heartbeat_of_s = self._session_began_s
        self._clock.stall.limit(
            registered_s=self._session_began_s, lease_s=target.lease_s, loop_max_s=session_timeout_s
        )
        thread.start()
        return thread

    def _stop_heartbeat(self, thread: HeartbeatThread) -> None:
        """Stop the heartbeats at the end of their session."""
        thread.stop()
        self._clock.stall.session_ended(time.monotonic())

    def snapshot_applied(self, controller_epoch: int) -> None:
        """Report an applied full snapshot with an immediate heartbeat."""
        if self._heartbeat is not None:
            self._heartbeat.snapshot_controller_epoch = controller_epoch
            self._heartbeat.kick()

    def request_shutdown(self) -> None:
        """Request that leaders move away; ``may_shut_down`` is set when the controller agrees."""
        self.want_shut_down = True
        if self._heartbeat is not None:
            self._heartbeat.want_shut_down = True
            self._heartbeat.kick()

    def _heartbeat_answered(
        self, thread: HeartbeatThread, answer: control.BrokerHeartbeatResponse
    ) -> None:
        """Handle a heartbeat response: fencing, permission to shut down, and the session's end.

        Called on the event loop. ``thread`` is the one that received the response.
        """
        # A late answer of an earlier session must not affect this one.
        if thread is not self._heartbeat:
            return
        # For the next heartbeat: the thread must not read the fetchers itself. If this loop was
        # blocked, responses may be waiting in the sockets.
        is_current = not self._clock.is_blocked
        thread.unresponsive = self._manager.unresponsive_leaders() if is_current else ()
        try:
            check(answer.error_code, "heartbeat")
        except SessionEnded as error:
            self._end_session(error)
            return
        if answer.is_fenced != self.fenced:
            logger.info("%s by the controller", "fenced" if answer.is_fenced else "unfenced")
        self.fenced = answer.is_fenced
        if not answer.is_fenced:
            self.unfenced.set()
        # If this process was paused for long enough, the controller may have elected other leaders
        # meanwhile. Only a session that started after the stall may confirm this broker's roles,
        # and only once this broker has applied that session's full snapshot.
        in_force = not answer.is_fenced and thread.snapshot_controller_epoch >= 0
        if in_force and not self._clock.stall.confirmed(self._heartbeat_of_s):
            self._end_session(SessionEnded("this process was paused for too long"))
            return
        # All leaders of this broker have moved away.
        if answer.should_shut_down:
            self.may_shut_down.set()

    def _heartbeat_lost(self, thread: HeartbeatThread, reason: str) -> None:
        if thread is self._heartbeat:
            self._end_session(SessionEnded(reason))

    def _end_session(self, error: SessionEnded) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


async def first_of(*works: Awaitable[None]) -> None:
    """Run coroutines and futures concurrently until one ends, then cancel and await the others.

    Raises the error of the one that ended first.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(tasks)
    for task in done:
        task.result()
