"""Answers of the present term's controller to requests of brokers.

An answer that stands for a decision is sent after the decision is stored. Without a term, or if the
term ends meanwhile, the answer is NOT_CONTROLLER and the broker tries another operator.
"""

import asyncio
import contextlib
import dataclasses
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidemark.message_text import numbered
from tidemark.wire import control, topics
from tidemark.wire.control import ReplicaStatesRequest, ReplicaStatesResponse, TopicState
from tidemark_operator.controller import elections, epochs, isr, rebuilding, registration
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import NO_EPOCH, BrokerInfo
from tidemark_operator.controller.state.replica_state_reports import ReplicaStateReports
from tidemark_operator.engines.own.link import EngineListener
from tidemark_operator.kube.kinds import USER
from tidemark_operator.leadership.terms import (
    ControllerFenced,
    EpochTooLow,
    SlicesBehind,
    TermEnded,
)
from tidemark_operator.listener.channel import Channel
from tidemark_operator.listener.frames import Response, not_controller
from tidemark_operator.listener.server import ControlHandler, ControlServer
from tidemark_operator.listener.sessions import Beat
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.term.broker_reports import take_report
from tidemark_operator.term.producer_ids import ProducerIdBlocks
from tidemark_operator.topic_changes.changer import TopicChanger

#: More replicas than a broker can have.
REPLICAS_MAX = 65_536


@dataclass(slots=True)
class _Pages:
    incarnation_id: uuid.UUID
    topics: list[TopicState] = field(default_factory=list)
    replicas: int = 0
    next_page: int = 0
    is_complete: bool = False


class ReplicaStates:
    """Pages of one term, by broker."""

    def __init__(self) -> None:
        self._pages: dict[int, _Pages] = {}

    def take(self, request: ReplicaStatesRequest) -> ReplicaStatesResponse:
        """Add the next page of a broker's report about its replica states.

        A page that is out of order, of another process or too large is answered with
        INVALID_REQUEST, which makes the broker restart with page 0.
        """
        if request.page == 0:
            self._pages[request.broker_id] = _Pages(request.incarnation_id)
        pages = self._pages.get(request.broker_id)
        # Out of order, of another process, after the last page, or too much.
        if (
            pages is None
            or pages.incarnation_id != request.incarnation_id
            or (pages.next_page, pages.is_complete) != (request.page, False)
            or pages.replicas > REPLICAS_MAX
        ):
            self._pages.pop(request.broker_id, None)
            return ReplicaStatesResponse(error_code=int(ErrorCode.invalid_request))
        pages.topics.extend(request.topics)
        # A topic without partitions counts as well, so the limit also bounds empty topics.
        pages.replicas += sum(len(topic.partitions) + 1 for topic in request.topics)
        pages.next_page += 1
        pages.is_complete = request.is_last
        return ReplicaStatesResponse(error_code=int(ErrorCode.none))

    def take_complete(self, node_id: int, incarnation_id: uuid.UUID) -> list[TopicState] | None:
        """Return all states of this process of a broker, once; None until the last page has
        arrived.
        """
        pages = self._pages.get(node_id)
        if pages is None or not pages.is_complete or pages.incarnation_id != incarnation_id:
            return None
        del self._pages[node_id]
        return pages.topics


logger = logging.getLogger(__name__)

R = TypeVar("R")
ERRORS_LOGGED_MAX = 3
#: Longer than brokers need to reconnect, and shorter than they wait for an answer.
FIRST_REPORTS_S = 8.0
#: Retry delay in seconds for the end of a session while too many tasks are running.
FENCED_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestedTerm:
    """Parts of a term that brokers' requests need; ``end`` ends the term."""

    services: ReconcilerServices
    changer: TopicChanger
    producer_ids: ProducerIdBlocks
    server: ControlServer
    session_timeout_s: float
    end: Callable[[TermEnded], None]
    replica_states: ReplicaStates = field(default_factory=ReplicaStates)
    #: Brokers that know this controller's epoch, from the answer to their registration.
    admitted: set[int] = field(default_factory=set)

    @property
    def session_timeout_ms(self) -> int:
        """Session timeout as the protocol has it, in milliseconds."""
        return round(self.session_timeout_s * 1000)


class BrokerRequests(ControlHandler, EngineListener):
    """The main loop's side of the control listener; ``begin`` and ``end`` frame a term."""

    def __init__(self) -> None:
        self._term: RequestedTerm | None = None
        self._expired: list[tuple[int, int]] = []
        #: Registrations with an ended session, until it is decided or the broker returns.
        self._over: set[tuple[int, int]] = set()
        #: The last heartbeat with news of each broker.
        self._last_beats: dict[int, control.BrokerHeartbeatRequest] = {}

    def begin(self, term: RequestedTerm) -> None:
        """Answer requests for this term."""
        self._term = term

    def end(self) -> None:
        """Answer NOT_CONTROLLER from now on, and forget the term's sessions."""
        self._term = None
        self._expired.clear()
        self._over.clear()
        self._last_beats.clear()

    # ------------------------------------------------------------ requests

    async def register(
        self, request: control.BrokerRegistrationRequest, *, session_alive: bool, connected: bool
    ) -> control.BrokerRegistrationResponse:
        """Decide a broker's registration, and return the response.

        The order is essential: store the slices (the broker leaves ISRs), then the Broker's status
        (its epoch), then open its session, then respond. ``session_alive`` and ``connected`` are
        about the broker's former process. The response may request the broker's replica states
        first; it then sends them and registers again.
        """
        term = self._term
        refusal = _as(control.BrokerRegistrationResponse, not_controller(request))
        if term is None:
            return refusal
        state = term.services.state
        # The broker has obeyed a later controller: this term ends, and the next takeover is above
        # it.
        if epochs.is_ahead(state, request):
            term.end(EpochTooLow(request.highest_controller_epoch))
            return refusal
        # Refuse what the present state forbids, before the slower checks.
        found = state.brokers.get(request.broker_id)
        is_refused = registration.refusal(
            state,
            found,
            request,
            session_alive=session_alive,
            connected=connected,
        )
        # No election before the states are known that this broker received from former controllers.
        if is_refused is None and not await self._may_decide(term, request):
            return dataclasses.replace(refusal, wants_states=request.has_states)
        if _is_duplicate(is_refused) and not self._check_unadmitted_states(term, request):
            return dataclasses.replace(refusal, wants_states=request.has_states)

        def register(draft: Draft) -> control.BrokerRegistrationResponse:
            # A broker that was admitted meanwhile is alive, unless this one has its directory.
            admitted = _epoch(draft.broker(request.broker_id)) != _epoch(found)
            return registration.register(
                draft,
                request,
                session_alive=session_alive or admitted,
                connected=connected and not admitted,
                session_timeout_ms=term.session_timeout_ms,
            )

        # The state may have changed during the wait, so the commit checks everything again.
        response = await term.services.committer.try_decide(
            register,
            f"the registration of broker {request.broker_id}",
        )
        if response is None:
            return refusal
        if response.error_code:
            logger.info("broker %d rejected: %s", request.broker_id, response.error_message)
            return response
        # Open the session last: from here on the broker counts as alive.
        broker = state.brokers.get(request.broker_id)
        fenced = broker is None or not broker.live
        term.admitted.add(request.broker_id)
        self._over.discard((request.broker_id, response.broker_epoch))
        term.server.open_session(request.broker_id, response.broker_epoch, fenced=fenced)
        return response

    async def replica_states(
        self, request: control.ReplicaStatesRequest
    ) -> control.ReplicaStatesResponse:
        """Collect the pages in which a broker describes its replicas before it registers."""
        term = self._term
        if term is None or request.broker_id not in term.services.state.brokers:
            return _as(control.ReplicaStatesResponse, not_controller(request))
        return term.replica_states.take(request)

    async def _may_decide(
        self, term: RequestedTerm, request: control.BrokerRegistrationRequest
    ) -> bool:
        """Return whether a registration may be decided: the broker's replica states are known.

        The registration of a new process removes it from ISRs, which may elect leaders. It
        therefore also waits for the reports of all other live brokers. Returns False if the broker
        has to send its states first, or the term has ended.
        """
        services, node_id = term.services, request.broker_id
        services.first_reports.broker_arrived(node_id)
        if request.has_states and not self._take_replica_states(term, request):
            # Without the states the answer requests them, and the broker registers again.
            return False
        services.first_reports.broker_reported(node_id)
        # The same process again changes no row, so it need not wait for the others.
        if services.state.brokers[node_id].incarnation_id == request.incarnation_id:
            return True
        await _await_first_reports(services)
        return term is self._term and services.first_reports.are_complete

    def _take_replica_states(
        self, term: RequestedTerm, request: control.BrokerRegistrationRequest
    ) -> bool:
        """Put the replica states that a broker has sent into the state.

        Returns False if the broker has to send them first. If they are newer than the
        PartitionSlices, the term ends before anything is decided.
        """
        services, node_id = term.services, request.broker_id
        states = term.replica_states.take_complete(node_id, request.incarnation_id)
        if states is None:
            return False
        services.state.take_replica_report(node_id, states)
        if self._is_behind(term, services.state.replica_reports, request):
            return False
        services.wake_rebuilt(node_id)
        return True

    def _check_unadmitted_states(
        self, term: RequestedTerm, request: control.BrokerRegistrationRequest
    ) -> bool:
        """Check the replica states of a process that is refused as a duplicate.

        Its former process may be alive. The states are not kept. But if they show that the
        PartitionSlices are outdated, the term must end before other replicas are elected. Returns
        False if the process has to send its states first, or the term has ended.
        """
        if not request.has_states:
            return True
        services, node_id = term.services, request.broker_id
        is_same = services.state.brokers[node_id].directory_id == request.directory_id
        # Only a process with the same log directory counts as the report of the expected broker.
        if is_same:
            services.first_reports.broker_arrived(node_id)
        states = term.replica_states.take_complete(node_id, request.incarnation_id)
        if states is None:
            return False
        reports = ReplicaStateReports()
        reports.take(node_id, states)
        # The states are checked, and dropped: this process may never be admitted.
        if self._is_behind(term, reports, request):
            return False
        if is_same:
            services.first_reports.broker_reported(node_id)
        return True

    def _is_behind(
        self,
        term: RequestedTerm,
        reports: ReplicaStateReports,
        request: control.BrokerRegistrationRequest,
    ) -> bool:
        """Return whether a broker has newer states than the PartitionSlices; if so, end the term.

        The next takeover then rebuilds the rows from brokers' reports.
        """
        state, node_id = term.services.state, request.broker_id
        # A term that rebuilds rows already knows that the slices are behind.
        is_known = state.cluster.rebuilding is not None and state.cluster.rebuilding.behind
        is_admitted = node_id in term.admitted
        knows_more = not (is_known or is_admitted) and epochs.knows_more(state, request)
        if not knows_more and not rebuilding.reveals(
            state, reports, node_id, is_admitted=is_admitted
        ):
            return False
        term.end(SlicesBehind(f"broker {node_id} has newer states than the PartitionSlices"))
        self._term = None  # decisions that have begun meanwhile see that the term has ended
        return True

    async def alter_partition(
        self, request: control.AlterPartitionRequest
    ) -> control.AlterPartitionResponse:
        """Decide the ISR changes that a leader requests (AlterPartition, KIP-497).

        The response is sent after the commit. While brokers' reports are missing, the changes are
        deferred: the response tells the leader to repeat the request, before its session expires.
        """
        refusal = _as(control.AlterPartitionResponse, not_controller(request))
        if self._term is not None:
            await _await_first_reports(self._term.services)
        # The term may have ended during the wait.
        term = self._term
        if term is None:
            return refusal
        if not term.services.first_reports.are_complete:
            return isr.deferred_response(Draft(term.services.state), request)
        response = await term.services.committer.try_decide(
            lambda draft: isr.alter_partition(draft, request),
            f"AlterPartition of broker {request.broker_id}",
        )
        return refusal if response is None else response

    async def broker_status(
        self, request: control.BrokerStatusRequest
    ) -> control.BrokerStatusResponse:
        """Record a broker's report of figures and errors."""
        term = self._term
        if term is None:
            return _as(control.BrokerStatusResponse, not_controller(request))
        broker = term.services.state.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch:
            return control.BrokerStatusResponse(error_code=int(ErrorCode.stale_broker_epoch))
        take_report(term.services, request)
        return control.BrokerStatusResponse(error_code=int(ErrorCode.none))

    async def allocate_producer_ids(
        self, request: control.AllocateProducerIdsRequest
    ) -> control.AllocateProducerIdsResponse:
        """Allocate a block of producer ids."""
        # A broker may report higher producer ids than the Cluster's status has, after a restore.
        if self._term is not None:
            await _await_first_reports(self._term.services)
        if self._term is None:
            return _as(control.AllocateProducerIdsResponse, not_controller(request))
        return await self._term.producer_ids.allocate(request.broker_id)

    async def change_topics(
        self, request: topics.ChangeTopicsRequest
    ) -> topics.ChangeTopicsResponse:
        """Change topics on behalf of a client."""
        if self._term is None:
            return _as(topics.ChangeTopicsResponse, not_controller(request))
        return await self._term.changer.change(request)

    # ------------------------------------------------------------ connections and sessions

    def on_attached(self, channel: Channel) -> None:
        """Accept a broker's command connection; a full snapshot follows."""
        term = self._term
        broker = None if term is None else term.services.state.brokers.get(channel.broker_id)
        # A connection of a former registration: the broker has to register first.
        if term is None or broker is None or broker.broker_epoch != channel.broker_epoch:
            channel.close_threadsafe()
            return
        logger.info("broker %d attached (epoch %d)", channel.broker_id, channel.broker_epoch)
        term.services.engine.attach(channel)

    def on_beat(self, broker_id: int, broker_epoch: int, beat: Beat) -> None:
        """Take a heartbeat whose content has changed; called in the main loop.

        A broker whose heartbeat arrives before its expired session is acted on counts as alive.
        """
        term = self._term
        if term is None:
            return
        # A stalled main loop does not prove that the broker works, so its session still ends.
        if not beat.loop_stalled:
            self._over.discard((broker_id, broker_epoch))
        if beat.certificates:
            term.services.certificates.used[broker_id] = beat.certificates
        request = _beat_request(term, broker_id, broker_epoch, beat)
        self._last_beats[broker_id] = request
        self._follow(term, request)

    def _follow(self, term: RequestedTerm, request: control.BrokerHeartbeatRequest) -> None:
        """Decide a heartbeat; equal ones are decided once at a time, from whatever source."""
        deciding = self._decide_beat(term, request, self._last_beats.get(request.broker_id))
        term.services.background.spawn(("beat", request), deciding)

    async def _decide_beat(
        self,
        term: RequestedTerm,
        request: control.BrokerHeartbeatRequest,
        last: control.BrokerHeartbeatRequest | None,
    ) -> None:
        """Decide a heartbeat with changed content, with retries until a newer one arrives.

        Later heartbeats with the same content are not passed on, so this one must not be lost.
        ``last``: the heartbeat before this one.
        """
        # A shutdown moves leaders, which needs the states that brokers have received.
        if request.want_shut_down:
            await term.services.first_reports.wait()
        await term.services.committer.until_decided(
            lambda draft: registration.heartbeat(
                draft, request, session_timeout_ms=term.session_timeout_ms
            ),
            f"a heartbeat of broker {request.broker_id}",
            holds=lambda: self._last_beats.get(request.broker_id) in (last, request),
        )

    def on_expired(self, broker_id: int, broker_epoch: int) -> None:
        """Fence the brokers whose sessions expire in the same turn of the loop together."""
        if self._term is None:
            return
        if not self._expired:
            asyncio.get_running_loop().call_soon(self._fence_expired)
        self._expired.append((broker_id, broker_epoch))
        self._over.add((broker_id, broker_epoch))

    def _fence_expired(self) -> None:
        """Fence the brokers whose sessions have expired since the last call, in the background."""
        term, expired = self._term, self._expired
        self._expired = []
        if term is None:
            return
        brokers = term.services.state.brokers
        # A broker that has registered since has another epoch.
        ended = frozenset(
            (broker_id, epoch)
            for broker_id, epoch in expired
            if broker_id in brokers and brokers[broker_id].broker_epoch == epoch
        )
        # A broker that has registered again needs no fencing.
        self._over -= ended.symmetric_difference(expired)
        if ended:
            term.services.first_reports.sessions_ended(broker_id for broker_id, _ in ended)
            # Too many background tasks: keep the sessions for the next try.
            if not term.services.background.spawn(("fence", ended), self._fence(term, ended)):
                self._expired += ended
                asyncio.get_running_loop().call_later(FENCED_AGAIN_S, self._fence_expired)

    async def _fence(self, term: RequestedTerm, ended: frozenset[tuple[int, int]]) -> None:
        """Fence these registrations, except those that return until all reports are known.

        Fencing elects leaders, so it waits until the slices are known to hold what brokers
        received.
        """
        await term.services.first_reports.wait()
        subject = f"the end of the sessions of {numbered('broker', (node for node, _ in ended))}"
        decided = await term.services.committer.until_decided(
            lambda draft: self._fence_dead(draft, ended if term is self._term else frozenset()),
            subject,
        )
        self._over -= decided or frozenset()

    def _fence_dead(
        self, draft: Draft, ended: frozenset[tuple[int, int]]
    ) -> frozenset[tuple[int, int]]:
        """Fence the brokers that have not returned; return all registrations that are now
        decided.
        """
        over = ended & self._over
        brokers = ((node, epoch, draft.broker(node)) for node, epoch in over)
        dead = [node for node, epoch, info in brokers if info and info.broker_epoch == epoch]
        elections.fence(draft, dead, reason="it has stopped, or does not respond")
        return over

    # ------------------------------------------------------------ command connections

    def on_states(
        self,
        node_id: int,
        request: control.PartitionStatesRequest,
        response: control.PartitionStatesResponse,
    ) -> None:
        """Record that a broker has applied partition states.

        Acknowledges leaderships and replica removals. After a full snapshot the broker may be
        unfenced.
        """
        term = self._term
        if term is None:
            return
        services = term.services
        news = services.state.take_states(node_id, request, response)
        news.update(services.deletions.take(services.state, node_id, request, response))
        # Topics that waited for this acknowledgement.
        for topic_id in news:
            services.wake_topic(topic_id, ahead=True)
        # A bad volume fails every partition; a few log lines are enough to show the cause.
        for error in response.errors[:ERRORS_LOGGED_MAX]:
            logger.warning(
                "broker %d, partition %s-%d: error %d: %s",
                node_id,
                error.topic_id,
                error.partition,
                error.error_code,
                error.message,
            )
        broker = services.state.brokers.get(node_id)
        # A broker that has applied the snapshot can serve. A heartbeat with this news unfences it.
        if request.full and broker is not None:
            beat = Beat(
                snapshot_controller_epoch=request.controller_epoch,
                want_shut_down=broker.shutting_down,  # the answer says nothing of that
            )
            self._follow(term, _beat_request(term, node_id, response.broker_epoch, beat))

    def on_users(self, node_id: int) -> None:
        """Reconcile the Users that waited until the last broker knows the users."""
        term = self._term
        if term is None:
            return
        users = term.services.state.users
        if not term.services.engine.users_behind(users.version):
            for key in users.take_waiting():
                term.services.queue.add(USER.key(key))

    def on_stale(self, node_id: int) -> None:
        """End the term: a broker has seen a higher controller epoch."""
        if self._term is not None:
            self._term.end(ControllerFenced(f"broker {node_id} has seen a higher controller epoch"))


def _is_duplicate(refused: tuple[ErrorCode, str] | None) -> bool:
    return refused is not None and refused[0] is ErrorCode.duplicate_broker_registration


async def _await_first_reports(services: ReconcilerServices) -> None:
    """Wait until every live broker has reported the states it received, or until the time limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_REPORTS_S):
            await services.first_reports.wait()


def _epoch(broker: BrokerInfo | None) -> int:
    return NO_EPOCH if broker is None else broker.broker_epoch


def _beat_request(
    term: RequestedTerm, broker_id: int, broker_epoch: int, beat: Beat
) -> control.BrokerHeartbeatRequest:
    """Return the fields of a heartbeat on which decisions depend."""
    present = term.services.state.controller_epoch
    return control.BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        snapshot_controller_epoch=present if beat.snapshot_controller_epoch == present else -1,
        loop_age_ms=term.session_timeout_ms if beat.loop_stalled else 0,
        want_shut_down=beat.want_shut_down,
    )


def _as(kind: type[R], response: Response) -> R:
    if not isinstance(response, kind):
        raise TypeError(f"{type(response).__name__} is no {kind.__name__}")
    return response
