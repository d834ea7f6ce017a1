"""What brokers ask, answered by the controller of the present term.

Every answer that stands for a decision is given after the decision is stored. Without a term, or
when the term ends meanwhile, the answer is NOT_CONTROLLER and the broker tries again elsewhere.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_operator.controller import elections, isr, registration
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.model import BrokerHealth, RowKey
from tidemark_operator.kube.kinds import BROKER, TOPIC
from tidemark_operator.leadership.terms import EpochTooLow, Fenced, TermEnded
from tidemark_operator.listener.answers import not_controller
from tidemark_operator.listener.channel import Channel
from tidemark_operator.listener.frames import Response
from tidemark_operator.listener.sessions import Beat
from tidemark_operator.reconcile.context import Context
from tidemark_operator.storage.committer import DecisionFailed

logger = logging.getLogger(__name__)

R = TypeVar("R")
FIGURES_S = 30.0
_WATCHED_TIERING = (control.TieringState.DISABLING,)


class BrokerRequests:
    """The main loop's side of the control listener; ``begin`` and ``end`` frame a term."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._end_term: Callable[[TermEnded], None] = lambda _: None
        self._expired: list[tuple[int, int]] = []

    def begin(self, context: Context, end_term: Callable[[TermEnded], None]) -> None:
        """A term begins; ``end_term`` ends it."""
        self._context = context
        self._end_term = end_term

    def end(self) -> None:
        """The term is over."""
        self._context = None
        self._expired.clear()

    # ------------------------------------------------------------ requests

    async def register(
        self, request: control.BrokerRegistrationRequest, *, session_alive: bool, connected: bool
    ) -> control.BrokerRegistrationResponse:
        """Registration: slices, then the Broker's status, then the session, then the answer."""
        context = self._context
        refusal = _as(control.BrokerRegistrationResponse, not_controller(request))
        if context is None:
            return refusal
        if request.highest_controller_epoch > context.state.controller_epoch:
            self._end_term(EpochTooLow(request.highest_controller_epoch))
            return refusal
        timeout_ms = round(context.session_timeout_s * 1000)
        response = await self._decided(
            context,
            lambda draft: registration.register(
                draft,
                request,
                session_alive=session_alive,
                connected=connected,
                session_timeout_ms=timeout_ms,
            ),
        )
        if response is None:
            return refusal
        if response.error_code:
            logger.info("broker %d refused: %s", request.broker_id, response.error_message)
            return response
        broker = context.state.brokers.get(request.broker_id)
        fenced = broker is None or not broker.live
        context.server.open_session(request.broker_id, response.broker_epoch, fenced=fenced)
        return response

    async def alter_partition(
        self, request: control.AlterPartitionRequest
    ) -> control.AlterPartitionResponse:
        """ISR changes, answered after the commit."""
        context = self._context
        refusal = _as(control.AlterPartitionResponse, not_controller(request))
        if context is None:
            return refusal
        response = await self._decided(context, lambda draft: isr.alter_partition(draft, request))
        return refusal if response is None else response

    async def _decided(self, context: Context, decide: Callable[[Draft], R]) -> R | None:
        try:
            return await context.committer.decide(decide)
        except (TermEnded, DecisionFailed) as error:
            logger.info("a broker's request was not decided: %s", error)
            return None

    async def broker_status(
        self, request: control.BrokerStatusRequest
    ) -> control.BrokerStatusResponse:
        """A report: figures and errors, kept in memory."""
        context = self._context
        if context is None:
            return _as(control.BrokerStatusResponse, not_controller(request))
        broker = context.state.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch:
            return control.BrokerStatusResponse(error_code=int(ErrorCode.stale_broker_epoch))
        self._take_health(context, request)
        self._take_failed(context, request)
        for report in request.partitions:
            self._take_report(context, report)
        return control.BrokerStatusResponse(error_code=int(ErrorCode.none))

    def _take_health(self, context: Context, request: control.BrokerStatusRequest) -> None:
        health = BrokerHealth(
            log_bytes=request.log_bytes,
            replicas=request.replicas,
            storage_error=request.storage_error,
            remote_error=request.remote_error,
            store_id=request.store_id,
        )
        former = context.state.health.get(request.broker_id)
        context.state.health[request.broker_id] = health
        key = context.key(BROKER, context.state.brokers[request.broker_id].key)
        if former is None or _errors(former) != _errors(health):
            context.queue.add(key)
            context.queue.add(context.cluster_key)
        elif former != health:
            context.queue.add_later(key, FIGURES_S)

    def _take_failed(self, context: Context, request: control.BrokerStatusRequest) -> None:
        """Replicas whose storage refuses, or works again: who leads them is decided at once."""
        node_id = request.broker_id
        named = {
            (topic.topic_id, partition)
            for topic in request.failed_replicas
            for partition in topic.partitions
        }
        if not named and not context.state.failed_on(node_id):
            return
        hosted = context.state.keys_on(node_id)
        news = context.state.put_failed(node_id, hosted.intersection(named))
        if news:
            context.spawn(("storage", node_id, news), self._storage_changed(context, node_id, news))

    async def _storage_changed(
        self, context: Context, node_id: int, news: frozenset[RowKey]
    ) -> None:
        await self._decided(context, lambda draft: elections.storage_changed(draft, node_id, news))
        for topic_id in {topic_id for topic_id, _ in news}:
            context.add_topic_id(topic_id)

    def _take_report(self, context: Context, report: control.PartitionStatus) -> None:
        row = context.state.row((report.topic_id, report.partition))
        topic = context.state.topic_by_id(report.topic_id)
        if row is None or topic is None or report.leader_epoch < row.leader_epoch:
            return
        former = context.state.reports.get(row.key)
        context.state.reports[row.key] = report
        status = topic.tiering_status
        if status is not None and status.state in _WATCHED_TIERING:
            self._note_remaining(context, report)
        key = context.key(TOPIC, topic.key)
        if former is None or _trouble(former) != _trouble(report):
            context.queue.add(key)
        elif former != report:
            watched = status is not None and status.state in _WATCHED_TIERING
            context.queue.add_later(key, 1.0 if watched else FIGURES_S)

    @staticmethod
    def _note_remaining(context: Context, report: control.PartitionStatus) -> None:
        rows = context.state.rows_of(report.topic_id)
        reports = (context.state.reports.get((report.topic_id, part)) for part in rows)
        remaining = sum(found.remaining_segments for found in reports if found is not None)
        context.disablements.note_remaining(report.topic_id, remaining, now_ms=context.now_ms())

    # ------------------------------------------------------------ connections and sessions

    def on_attached(self, channel: Channel) -> None:
        """A broker's command connection: the full snapshot begins it."""
        context = self._context
        broker = None if context is None else context.state.brokers.get(channel.broker_id)
        if context is None or broker is None or broker.broker_epoch != channel.broker_epoch:
            channel.close_threadsafe()
            return
        logger.info("broker %d attached (epoch %d)", channel.broker_id, channel.broker_epoch)
        context.engine.attach(channel)

    def on_beat(self, broker_id: int, broker_epoch: int, beat: Beat) -> None:
        """A heartbeat with news, decided beside the intake."""
        context = self._context
        if context is None:
            return
        age_ms = round(context.session_timeout_s * 1000) if beat.loop_stalled else 0
        request = control.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            snapshot_controller_epoch=beat.snapshot_controller_epoch,
            loop_age_ms=age_ms,
            want_shut_down=beat.want_shut_down,
        )
        name = ("beat", broker_id, broker_epoch, beat)
        context.spawn(name, self._beat(context, request))

    async def _beat(self, context: Context, request: control.BrokerHeartbeatRequest) -> None:
        timeout_ms = round(context.session_timeout_s * 1000)
        await self._decided(
            context,
            lambda draft: registration.heartbeat(draft, request, session_timeout_ms=timeout_ms),
        )

    def on_expired(self, broker_id: int, broker_epoch: int) -> None:
        """A session ran out; all of one moment are fenced together."""
        if self._context is None:
            return
        if not self._expired:
            asyncio.get_running_loop().call_soon(self._fence_expired)
        self._expired.append((broker_id, broker_epoch))

    def _fence_expired(self) -> None:
        context, expired = self._context, self._expired
        self._expired = []
        if context is None:
            return
        brokers = context.state.brokers
        gone = {
            broker_id
            for broker_id, epoch in expired
            if broker_id in brokers and brokers[broker_id].broker_epoch == epoch
        }
        if gone:
            context.spawn(("fence", frozenset(gone)), self._fence(context, gone))

    async def _fence(self, context: Context, gone: set[int]) -> None:
        reason = "it has stopped, or does not answer"
        await self._decided(context, lambda draft: elections.fence(draft, gone, reason=reason))

    # ------------------------------------------------------------ command connections

    def on_states(
        self,
        node_id: int,
        request: control.PartitionStatesRequest,
        response: control.PartitionStatesResponse,
    ) -> None:
        """A broker applied states: removals are confirmed, a full snapshot lets it be unfenced."""
        context = self._context
        if context is None:
            return
        for topic_id in context.deletions.take(context.state, node_id, request, response):
            context.add_topic_id(topic_id)
        for error in response.errors[:3]:
            logger.warning(
                "broker %d, partition %s-%d: error %d: %s",
                node_id,
                error.topic_id,
                error.partition,
                error.error_code,
                error.message,
            )
        if request.full:
            beat = Beat(snapshot_controller_epoch=request.controller_epoch)
            self.on_beat(node_id, response.broker_epoch, beat)

    def on_stale(self, node_id: int) -> None:
        """A broker has seen a higher controller epoch than ours."""
        self._end_term(Fenced(f"broker {node_id} has seen a higher controller epoch"))


def _trouble(report: control.PartitionStatus) -> tuple[str, bool]:
    """What of a report must be shown at once."""
    return report.error_reason, report.offline


def _errors(health: BrokerHealth) -> tuple[str, str, str]:
    return health.storage_error, health.remote_error, health.store_id


def _as(kind: type[R], response: Response) -> R:
    if not isinstance(response, kind):
        raise TypeError(f"{type(response).__name__} is no {kind.__name__}")
    return response
