"""A peer that speaks the control protocol and sends brokers what a test decides.

It keeps rows in memory, answers registrations, heartbeats, AlterPartition and reports, and pushes
partition states. The test makes the elections.
"""

import asyncio
import tempfile
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.certificates import files_of
from tests.kafka_listener import KafkaListener
from tests.user_states import user_states
from tidemark.tiering import TieringState
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import decode_request, encode_response, peek_request
from tidemark.wire.users import ClientQuota, UserState, UserStatesRequest, UserStatesResponse

Key = tuple[uuid.UUID, int]
CLUSTER_ID = "test-cluster"


@dataclass
class Registered:
    """One broker as the controller sees it."""

    registration: control.BrokerRegistrationRequest
    epoch: int
    fenced: bool = True
    commands: KafkaConnection | None = None
    heartbeat: control.BrokerHeartbeatRequest | None = None
    statuses: dict[Key, control.PartitionStatus] = field(default_factory=dict)
    last_report: control.BrokerStatusRequest | None = None
    push_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ScriptedController:
    def __init__(self, *, epoch: int = 1, session_timeout_ms: int = 4000) -> None:
        self.epoch = epoch
        self.session_timeout_ms = session_timeout_ms
        self.brokers: dict[int, Registered] = {}
        self.topics: dict[uuid.UUID, control.TopicState] = {}
        self.rows: dict[Key, control.PartitionState] = {}
        self.cluster_config: dict[str, str] = {}
        self.remote_storage = ""
        #: How many of the next registrations are refused: the former process counts as alive.
        self.refuses_registrations = 0
        #: Node ids whose Broker was deleted.
        self.deleted: set[int] = set()
        self.registrations: list[control.BrokerRegistrationRequest] = []
        self.isr_changes: list[control.IsrChange] = []
        self.refuse_isr_changes = False
        self.next_producer_id = 0
        #: Users that brokers receive (None: nothing), and the brokers' answers.
        self.users: UserStatesRequest | None = None
        self.users_follow = False
        self.users_answers: list[int] = []
        #: While cleared, a broker that attaches receives nothing.
        self.sends_snapshots = asyncio.Event()
        self.sends_snapshots.set()
        self.listener = KafkaListener(self._serve)
        self._folder = tempfile.TemporaryDirectory()
        self._next_epoch = 100
        self.changed = asyncio.Condition()

    async def start(self, port: int = 0) -> "ScriptedController":
        tls = files_of(TlsIdentity(CLUSTER_ID), Path(self._folder.name))
        await self.listener.start("127.0.0.1", port, client_id="controller", tls=tls)
        return self

    @property
    def port(self) -> int:
        return self.listener.port

    async def close(self) -> None:
        await self.listener.close()
        self._folder.cleanup()

    # ------------------------------------------------------------ what a test calls

    async def until(self, condition: Any, timeout_s: float = 20.0) -> None:
        """Wait until ``condition()`` is true, checked after every message of a broker."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(condition)

    async def unfenced(self, *nodes: int) -> None:
        await self.until(
            lambda: all(n in self.brokers and not self.brokers[n].fenced for n in nodes)
        )

    async def create_topic(
        self,
        name: str,
        replicas: list[tuple[int, ...]],
        config: dict[str, str] | None = None,
        *,
        tiering: TieringState = TieringState.NONE,
    ) -> uuid.UUID:
        """Create a topic with one partition per entry; the first replica leads, all are in sync."""
        topic_id = uuid.uuid4()
        self.topics[topic_id] = control.TopicState(
            topic_id=topic_id,
            name=name,
            config=entries(config or {}),
            tiering_state=int(tiering),
            tiered_epoch=0,
            disable_policy=0,
            partitions=(),
        )
        for partition, nodes in enumerate(replicas):
            self.rows[topic_id, partition] = control.PartitionState(
                partition=partition,
                leader=nodes[0],
                leader_epoch=0,
                partition_epoch=0,
                replicas=nodes,
                # Negative ids are placeholders (KIP-409), which are never in sync.
                isr=tuple(sorted(node for node in nodes if node >= 0)),
                manifest=False,
            )
        await self.push(topic_id)
        return topic_id

    async def change(self, topic_id: uuid.UUID, partition: int, **changes: Any) -> None:
        """Change a row under the next partition epoch; a new leader has the next leader epoch."""
        row = self.rows[topic_id, partition]
        if changes.get("leader", row.leader) != row.leader:
            changes.setdefault("leader_epoch", row.leader_epoch + 1)
        changes.setdefault("partition_epoch", row.partition_epoch + 1)
        self.rows[topic_id, partition] = replace(row, **changes)
        await self.push(topic_id)

    async def push(
        self, *topic_ids: uuid.UUID, removals: tuple[control.Removal, ...] = ()
    ) -> dict[int, control.PartitionStatesResponse]:
        """Push a change to every attached broker; return their answers."""
        answers = {}
        for node, broker in tuple(self.brokers.items()):
            # Brokers without a command connection receive everything with their next snapshot.
            if broker.commands is not None and not broker.commands.closed:
                answer = await self.send(node, self._states(topic_ids, removals=removals))
                if answer is not None:
                    answers[node] = answer
        return answers

    async def send(
        self, node: int, request: control.PartitionStatesRequest
    ) -> control.PartitionStatesResponse | None:
        broker = self.brokers[node]
        async with broker.push_lock:
            if broker.commands is None:
                return None
            # A broker that is being killed must not fail the test that kills it.
            try:
                return await broker.commands.request(request, control.PartitionStatesResponse, 20.0)
            except (ConnectionClosed, TimeoutError):
                return None

    async def send_users(
        self,
        *users: UserState,
        super_users: tuple[str, ...] = (),
        authorize: bool = True,
        quotas: tuple[ClientQuota, ...] = (),
    ) -> None:
        """Send all users to every attached broker, and to brokers that attach later."""
        self.users = user_states(
            *users,
            controller_epoch=self.epoch,
            authorize=authorize,
            super_users=super_users,
            quotas=quotas,
        )
        for broker in self.brokers.values():
            await self._send_users(broker)

    async def _send_users(self, broker: Registered) -> None:
        if self.users is not None and broker.commands is not None:
            answer = await broker.commands.request(self.users, UserStatesResponse, 20.0)
            self.users_answers.append(answer.error_code)

    async def fence(self, node: int) -> None:
        """End a broker's session: fence it, and remove it from ISRs in which it is not the last."""
        self.brokers[node].fenced = True
        for key, row in self.rows.items():
            isr = tuple(member for member in row.isr if member != node) or row.isr
            if isr != row.isr:
                self.rows[key] = replace(row, isr=isr, partition_epoch=row.partition_epoch + 1)
        await self.push(*self.topics)

    # ------------------------------------------------------------ the protocol

    def _states(
        self,
        topic_ids: tuple[uuid.UUID, ...],
        *,
        full: bool = False,
        removals: tuple[control.Removal, ...] = (),
    ) -> control.PartitionStatesRequest:
        # Increments and snapshots always carry all brokers, as after a change of one.
        return control.PartitionStatesRequest(
            controller_id="scripted",
            controller_epoch=self.epoch,
            full=full,
            cluster_id=CLUSTER_ID,
            cluster_config=entries(self.cluster_config),
            remote_storage=self.remote_storage,
            store_id="",
            brokers=tuple(
                control.BrokerState(
                    broker_id=node,
                    broker_epoch=broker.epoch,
                    rack=broker.registration.rack,
                    fenced=broker.fenced,
                    listeners=broker.registration.listeners,
                )
                for node, broker in self.brokers.items()
            ),
            topics=tuple(
                replace(
                    self.topics[topic_id],
                    # A topic is sent with all of its partitions.
                    partitions=tuple(r for (t, _), r in self.rows.items() if t == topic_id),
                )
                for topic_id in topic_ids
                if topic_id in self.topics
            ),
            removals=removals,
            users_follow=self.users_follow,
        )

    async def _serve(self, connection: KafkaConnection) -> None:
        while True:
            frame = await connection.read_frame()
            key, _, correlation_id = peek_request(frame)
            # After Attach the roles reverse: the controller sends requests on this connection.
            if key == control.ATTACH:
                await self._attach(connection, _body(control.AttachRequest, frame), correlation_id)
                return
            answer = await self._answer(key, frame)
            connection.write(encode_response(answer, correlation_id))
            async with self.changed:
                self.changed.notify_all()

    async def _answer(self, key: int, frame: Any) -> Any:
        if key == control.BROKER_REGISTRATION:
            return self._register(_body(control.BrokerRegistrationRequest, frame))
        if key == control.BROKER_HEARTBEAT:
            return await self._heartbeat(_body(control.BrokerHeartbeatRequest, frame))
        if key == control.ALTER_PARTITION:
            return await self._alter(_body(control.AlterPartitionRequest, frame))
        if key == control.ALLOCATE_PRODUCER_IDS:
            self.next_producer_id += 1000
            return control.AllocateProducerIdsResponse(
                error_code=0, producer_id_start=self.next_producer_id - 1000, producer_id_len=1000
            )
        if key == control.BROKER_STATUS:
            return self._status(_body(control.BrokerStatusRequest, frame))
        raise ValueError(f"key {key}")

    def _register(self, request: control.BrokerRegistrationRequest) -> Any:
        self.registrations.append(request)
        if self.refuses_registrations:
            self.refuses_registrations -= 1
            return control.BrokerRegistrationResponse(
                # 101 is DUPLICATE_BROKER_REGISTRATION.
                error_code=101,
                error_message="live with another process",
                broker_epoch=-1,
                controller_epoch=self.epoch,
                session_timeout_ms=self.session_timeout_ms,
            )
        if request.broker_id in self.deleted:
            return control.BrokerRegistrationResponse(
                # 102 is BROKER_ID_NOT_REGISTERED.
                error_code=102,
                error_message=f"no Broker object has nodeId {request.broker_id}: create one",
                broker_epoch=-1,
                controller_epoch=self.epoch,
                session_timeout_ms=self.session_timeout_ms,
            )
        self._next_epoch += 1
        self.brokers[request.broker_id] = Registered(request, self._next_epoch)
        return control.BrokerRegistrationResponse(
            error_code=0,
            error_message=None,
            broker_epoch=self._next_epoch,
            controller_epoch=self.epoch,
            session_timeout_ms=self.session_timeout_ms,
        )

    async def _attach(
        self, connection: KafkaConnection, request: control.AttachRequest, correlation_id: int
    ) -> None:
        broker = self.brokers[request.broker_id]
        answer = control.AttachResponse(error_code=0, controller_epoch=self.epoch)
        connection.write(encode_response(answer, correlation_id))
        broker.commands = connection
        # A test can hold the first snapshot back.
        await self.sends_snapshots.wait()
        await self.send(request.broker_id, self._states(tuple(self.topics), full=True))
        await self._send_users(broker)
        async with self.changed:
            self.changed.notify_all()
        await connection.read_frame()  # brokers send nothing here: it raises when they disconnect

    async def _heartbeat(self, request: control.BrokerHeartbeatRequest) -> Any:
        broker = self.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            # 77 is STALE_BROKER_EPOCH: the broker registers again.
            return _beat(77, self.epoch)
        broker.heartbeat = request
        # A broker is unfenced once it has applied a snapshot of this controller.
        if broker.fenced and request.snapshot_controller_epoch == self.epoch:
            broker.fenced = False
            await self.push()
        return replace(
            _beat(0, self.epoch),
            is_fenced=broker.fenced,
            should_shut_down=request.want_shut_down,
        )

    async def _alter(self, request: control.AlterPartitionRequest) -> Any:
        results = []
        for change in request.changes:
            self.isr_changes.append(change)
            key = (change.topic_id, change.partition)
            row = self.rows[key]
            code = 0
            if change.leader_epoch != row.leader_epoch:
                # 74 is FENCED_LEADER_EPOCH.
                code = 74
            elif change.partition_epoch != row.partition_epoch or self.refuse_isr_changes:
                # 95 is INVALID_UPDATE_VERSION: the proposal was made for an older row.
                code = 95
            else:
                self.rows[key] = row = replace(
                    row,
                    isr=tuple(change.new_isr),
                    leader_recovery_state=change.leader_recovery_state,
                    partition_epoch=row.partition_epoch + 1,
                )
            results.append(
                control.IsrResult(
                    topic_id=change.topic_id,
                    partition=change.partition,
                    error_code=code,
                    leader=row.leader,
                    leader_epoch=row.leader_epoch,
                    partition_epoch=row.partition_epoch,
                    isr=row.isr,
                    leader_recovery_state=row.leader_recovery_state,
                )
            )
        return control.AlterPartitionResponse(error_code=0, results=tuple(results))

    def _status(self, request: control.BrokerStatusRequest) -> Any:
        broker = self.brokers[request.broker_id]
        broker.last_report = request
        for status in request.partitions:
            broker.statuses[status.topic_id, status.partition] = status
        return control.BrokerStatusResponse(error_code=0)


def entries(values: dict[str, str]) -> tuple[control.ConfigEntry, ...]:
    return tuple(control.ConfigEntry(name=name, value=value) for name, value in values.items())


def _beat(code: int, epoch: int) -> control.BrokerHeartbeatResponse:
    return control.BrokerHeartbeatResponse(
        error_code=code, is_fenced=True, should_shut_down=False, controller_epoch=epoch
    )


def _body(entity_type: Any, frame: Any) -> Any:
    return decode_request(entity_type, frame)
