"""Frames of the requests that brokers send to a world's term."""

import dataclasses

from tests.unit.controller.controller_world import registration_request
from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.wire import control
from tidemark_operator.kube.kinds import CLUSTER
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.objects.conversions import cluster_id_of
from tidemark_operator.term.broker_requests import BrokerRequests, RequestedTerm
from tidemark_operator.term.producer_ids import ProducerIdBlocks
from tidemark_operator.topic_changes.changer import TopicChanger


class RequestBench:
    """World with the operator's handler of broker requests; ``ends`` has ends of terms."""

    def __init__(self, world: ShellWorld) -> None:
        self.world = world
        self.requests = BrokerRequests()
        self.ends: list[TermEnded] = []
        self.sessions: list[int] = []

    def begin(self) -> None:
        self.requests.begin(
            RequestedTerm(
                self.world.services,
                TopicChanger(self.world.services),
                ProducerIdBlocks(self.world.services),
                self,  # type: ignore[arg-type]
                # Session timeout in seconds, the default of broker.session.timeout.ms.
                9.0,
                self.ends.append,
            )
        )

    def open_session(self, broker_id: int, broker_epoch: int, *, fenced: bool) -> None:
        self.sessions.append(broker_id)

    def request(self, **fields: object) -> control.BrokerRegistrationRequest:
        body = self.world.server.find(CLUSTER, "main")
        assert body is not None
        request = registration_request(1, incarnation=1, cluster_id=cluster_id_of(body))
        return dataclasses.replace(request, **fields)  # type: ignore[arg-type]

    async def register(self, **fields: object) -> control.BrokerRegistrationResponse:
        return await self.requests.register(
            self.request(**fields), session_alive=False, connected=False
        )

    def report(self, **fields: object) -> control.BrokerStatusRequest:
        broker = self.world.services.state.brokers[1]
        request = control.BrokerStatusRequest(
            broker_id=1,
            broker_epoch=broker.broker_epoch,
            log_bytes=10,
            replicas=1,
            storage_error="",
            remote_error="",
            store_id="",
            partitions=(),
        )
        return dataclasses.replace(request, **fields)  # type: ignore[arg-type]
