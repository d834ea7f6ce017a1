"""The broker's end of the control protocol with nothing behind it: commands are recorded, and
each test decides how it is answered."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tests.certificates import leaf_of_operator
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control, deletions, topics, users
from tidemark.wire.framing import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    peek_request,
)

logger = logging.getLogger(__name__)
R = TypeVar("R")


class ControllerRefused(Exception):
    """The controller answered with an error code."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(f"{ErrorCode(code).name}: {message}")
        self.code = code


class ControllerConnection:
    """One connection to the controller, request after request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._number = 0

    @classmethod
    async def open(cls, address: str, tls: TlsFiles) -> "ControllerConnection":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls.contexts().client))

    async def frame(self) -> bytes:
        # Frames have a length of four bytes before them, as in Kafka's protocol.
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def ask(self, request: Any, response_type: type[R], timeout_s: float = 20.0) -> R:
        # Correlation ids let the peer notice a response that belongs to another request.
        self._number += 1
        self.writer.write(encode_request(request, self._number, "peer"))
        async with asyncio.timeout(timeout_s):
            number, response = decode_response(response_type, await self.frame())
        assert number == self._number
        return response

    def close(self) -> None:
        self.writer.close()


# The response to a query that arrives before the partition's state.
def _unknown_log(topic_id: uuid.UUID, partition: int) -> control.ReplicaLog:
    return control.ReplicaLog(
        topic_id=topic_id,
        partition=partition,
        error_code=int(ErrorCode.unknown_topic_or_partition),
        last_epoch=-1,
        next_offset=-1,
        leader_epoch=-1,
        lost_start_offset=-1,
        lost_end_offset=-1,
    )


class BrokerPeer:
    """Registers, attaches, sends heartbeats; applies states to ``topics`` and ``removed``."""

    def __init__(self, node_id: int, cluster_id: str, certificates: Path) -> None:
        """``certificates``: the operators' folder that has the certificate authority."""
        self.node_id, self.cluster_id = node_id, cluster_id
        self.certificates = certificates
        self.session_token = b""
        self.incarnation_id, self.directory_id = uuid.uuid4(), uuid.uuid4()
        self.broker_epoch = -1
        self.clean_epoch = -1
        self.highest_epoch = 0
        self.controller_epoch = -1
        self.listeners = (control.Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092),)
        self.snapshots = 0
        self.broker_lists = 0
        self.fenced = True
        self.should_shut_down = False
        self.want_shut_down = False
        #: Between two heartbeats, in seconds.
        self.heartbeat_s = 0.1
        #: Leaders that this broker reports as unresponsive.
        self.unresponsive: tuple[int, ...] = ()
        #: The process hangs: its connections stay open, and it sends nothing.
        self.is_paused = False
        self.remote_storage = ""
        self.store_id = ""
        self.brokers: dict[int, control.BrokerState] = {}
        self.topics: dict[str, control.TopicState] = {}
        self.rows: dict[tuple[str, int], control.PartitionState] = {}
        self.removed: set[tuple[uuid.UUID, int]] = set()
        self.disable_requests: list[control.DisableRemoteTopicRequest] = []
        self.remote_deletions: list[control.DeleteRemoteTopicRequest] = []
        self.deleted: dict[tuple[str, int], int] = {}
        self.acknowledge_disable = True
        self.user_states: list[users.UserStatesRequest] = []
        #: Error codes with which the next commands with users are answered.
        self.user_errors: list[int] = []
        #: What ReplicaLogInfo is answered: (last epoch, log end), None: the storage refuses.
        self.logs: dict[tuple[str, int], tuple[int, int] | None] = {}
        self.lost: dict[tuple[str, int], tuple[int, int]] = {}
        self.failed: tuple[control.TopicPartitions, ...] = ()
        self.high_watermark = 1000
        self.offset_of_time: Callable[[int], int] = lambda _: 100
        self._tasks: list[asyncio.Task[None]] = []
        self._open: list[ControllerConnection] = []
        self.requests: ControllerConnection | None = None

    # ------------------------------------------------------------ session

    async def register(self, address: str) -> control.BrokerRegistrationResponse:
        """Register on a new connection; raises ControllerRefused."""
        self.requests = await self._connect(address)
        response = await self.requests.ask(
            control.BrokerRegistrationRequest(
                broker_id=self.node_id,
                cluster_id=self.cluster_id,
                incarnation_id=self.incarnation_id,
                directory_id=self.directory_id,
                # Both identify the disk: the controller compares the epoch of a clean shutdown with
                # its record.
                previous_broker_epoch=self.clean_epoch,
                highest_controller_epoch=self.highest_epoch,
                rack=None,
                listeners=self.listeners,
            ),
            control.BrokerRegistrationResponse,
        )
        if response.error_code:
            raise ControllerRefused(response.error_code, response.error_message)
        self.broker_epoch = response.broker_epoch
        self.session_token = response.session_token
        self.controller_epoch = response.controller_epoch
        return response

    async def start(self, address: str, timeout_s: float = 40.0) -> None:
        """Register (repeatedly while the controller is not ready), attach, and send heartbeats."""
        async with asyncio.timeout(timeout_s):
            while True:
                # Every attempt opens a new connection, as a broker that searches its controller
                # does.
                try:
                    await self.register(address)
                    break
                except (ControllerRefused, OSError, EOFError) as error:
                    if isinstance(error, ControllerRefused) and error.code not in (41, 101, 102):
                        # 41 NOT_CONTROLLER, 101 DUPLICATE_BROKER_REGISTRATION, 102
                        # BROKER_ID_NOT_REGISTERED: all of them may pass.
                        raise
                    # A controller has a limit for the connections of one broker.
                    self._hang_up()
                    await asyncio.sleep(0.1)
        await self.attach(address)
        self._spawn(self._heartbeats(address))

    async def attach(self, address: str) -> None:
        """Open the command connection and serve it."""
        commands = await self._connect(address)
        response = await commands.ask(
            # Commands come over a connection of their own, in the opposite direction.
            control.AttachRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                session_token=self.session_token,
                # The operator sends no command that is newer than this one.
                last_command=deletions.DELETE_TOPIC_RECORDS,
            ),
            control.AttachResponse,
        )
        if response.error_code:
            raise ControllerRefused(response.error_code)
        self._spawn(self._serve(commands))

    async def close(self) -> None:
        """Close all connections without a shutdown request, as a process that was killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def restarted(self, *, clean: bool) -> "BrokerPeer":
        """The same broker as a new process on the same disk."""
        # A new process has a new incarnation id; the directory id is on the disk.
        other = BrokerPeer(self.node_id, self.cluster_id, self.certificates)
        other.directory_id = self.directory_id
        # The proof of a clean shutdown (KIP-966): without it the broker may have lost its tail.
        other.clean_epoch = self.broker_epoch if clean else -1
        return other

    async def _connect(self, address: str) -> ControllerConnection:
        who = TlsIdentity(self.cluster_id, self.node_id)
        tls = leaf_of_operator(self.certificates, who)
        connection = await ControllerConnection.open(address, tls)
        self._open.append(connection)
        return connection

    def _spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _heartbeats(self, address: str) -> None:
        connection = await self._connect(address)
        while True:
            with contextlib.suppress(ControllerRefused):
                if not self.is_paused:
                    await self.heartbeat(connection)
            await asyncio.sleep(self.heartbeat_s)

    async def heartbeat(self, connection: ControllerConnection, loop_age_ms: int = 0) -> None:
        """One heartbeat; raises ControllerRefused."""
        response = await connection.ask(
            control.BrokerHeartbeatRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                # -1 until the first snapshot: a broker is fenced until it has applied one.
                snapshot_controller_epoch=self.controller_epoch if self.snapshots else -1,
                loop_age_ms=loop_age_ms,
                want_shut_down=self.want_shut_down,
                session_token=self.session_token,
                interval_ms=round(self.heartbeat_s * 1000),
                unresponsive=self.unresponsive,
            ),
            control.BrokerHeartbeatResponse,
        )
        if response.error_code:
            raise ControllerRefused(response.error_code)
        self.fenced = response.is_fenced
        self.should_shut_down = response.should_shut_down

    # ------------------------------------------------------------ requests

    async def alter(self, topic: str, partition: int, isr: tuple[int, ...]) -> control.IsrResult:
        """Propose an ISR as the leader under the latest epochs; raises ControllerRefused."""
        row = self.rows[topic, partition]
        change = control.IsrChange(
            topic_id=self.topics[topic].topic_id,
            partition=partition,
            # Both epochs are those of the row, so a concurrent change makes the proposal fail.
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            new_isr=isr,
            remote_manifest=False,
        )
        assert self.requests is not None
        response = await self.requests.ask(
            control.AlterPartitionRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                session_token=self.session_token,
                changes=(change,),
            ),
            control.AlterPartitionResponse,
        )
        if response.error_code:
            raise ControllerRefused(response.error_code)
        return response.results[0]

    async def change_topics(
        self, address: str, *changes: topics.TopicChange, validate_only: bool = False
    ) -> list[tuple[int, str]]:
        """Send a client's changes of topics over a connection of its own; return (error code,
        message) for each.
        """
        connection = await self._connect(address)
        response = await connection.ask(
            topics.ChangeTopicsRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                session_token=self.session_token,
                # The principal and the address appear in the Event of the change.
                principal="User:alice",
                host="10.0.0.7",
                validate_only=validate_only,
                changes=changes,
            ),
            topics.ChangeTopicsResponse,
        )
        connection.close()
        if response.error_code:
            raise ControllerRefused(response.error_code)
        return [(result.error_code, result.error_message or "") for result in response.results]

    async def report(self, log_bytes: int, records: int, *, waits_for: str = "") -> None:
        """Send a BrokerStatus: the size of every partition that it leads, or the reason why it
        cannot lead.
        """
        assert self.requests is not None
        # Leaders report sizes; a replica that cannot lead reports its reason instead.
        led = [
            control.PartitionStatus(
                topic_id=self.topics[topic].topic_id,
                partition=partition,
                leader_epoch=row.leader_epoch,
                log_start_offset=0,
                local_log_start_offset=0,
                high_watermark=records,
                next_offset=records,
                highest_remote_offset=-1,
                low_watermark=0,
                local_bytes=log_bytes,
                remote_segments=records // 1000,
                remote_bytes=log_bytes // 2,
                remaining_segments=0,
                remaining_bytes=0,
                error_reason=waits_for,
                error_message="it waits" if waits_for else "",
                offline=bool(waits_for),
            )
            for (topic, partition), row in self.rows.items()
            if row.leader == self.node_id
        ]
        response = await self.requests.ask(
            control.BrokerStatusRequest(
                broker_id=self.node_id,
                broker_epoch=self.broker_epoch,
                session_token=self.session_token,
                log_bytes=log_bytes,
                replicas=len(self.rows),
                storage_error="",
                remote_error="",
                store_id=self.store_id,
                partitions=tuple(led),
                failed_replicas=self.failed,
            ),
            control.BrokerStatusResponse,
        )
        if response.error_code:
            raise ControllerRefused(response.error_code)

    # ------------------------------------------------------------ commands

    async def _serve(self, connection: ControllerConnection) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await connection.frame()
                # Commands are answered in order, one at a time.
                key, _, number = peek_request(frame)
                try:
                    answer = self._answer(key, frame)
                # Let the operator see a closed connection, not a time-out.
                except Exception:  # without the log the peer would ignore messages silently
                    logger.exception("peer %d cannot answer", self.node_id)
                    connection.close()
                    raise
                connection.writer.write(encode_response(answer, number))

    def _answer(self, key: int, frame: bytes) -> Any:
        match key:
            case control.PARTITION_STATES:
                return self._apply(decode_request(control.PartitionStatesRequest, frame))
            case control.DISABLE_REMOTE_TOPIC:
                return self._disable(decode_request(control.DisableRemoteTopicRequest, frame))
            # Deletion of a tier succeeds at once; tests count the requests.
            case control.DELETE_REMOTE_TOPIC:
                self.remote_deletions.append(
                    decode_request(control.DeleteRemoteTopicRequest, frame)
                )
                return control.DeleteRemoteTopicResponse(
                    error_code=0, remaining_segments=0, message=""
                )
            case control.REPLICA_LOG_INFO:
                return self._logs(decode_request(control.ReplicaLogInfoRequest, frame))
            case users.USER_STATES:
                return self._users(decode_request(users.UserStatesRequest, frame))
            case deletions.DELETION_POINTS:
                return self._points(decode_request(deletions.DeletionPointsRequest, frame))
            case deletions.DELETE_TOPIC_RECORDS:
                return self._delete(decode_request(deletions.DeleteTopicRecordsRequest, frame))
        raise AssertionError(f"unexpected command {key}")

    def _apply(self, request: control.PartitionStatesRequest) -> control.PartitionStatesResponse:
        self.controller_epoch = request.controller_epoch
        if not request.storage_as_before:
            self.remote_storage, self.store_id = request.remote_storage, request.store_id
        if request.full or request.brokers:
            self.broker_lists += 1
            self.brokers = {broker.broker_id: broker for broker in request.brokers}
        # A full snapshot replaces all that was known, increments add to it.
        if request.full:
            self.snapshots += 1
            self.rows.clear()
            self.topics.clear()
        for topic in request.topics:
            self.topics[topic.name] = topic
            for row in topic.partitions:
                self.rows[topic.name, row.partition] = row
        # Partition -1 means the whole topic.
        self.removed.update((gone.topic_id, gone.partition) for gone in request.removals)
        return control.PartitionStatesResponse(
            error_code=0, broker_epoch=self.broker_epoch, errors=()
        )

    def _users(self, request: users.UserStatesRequest) -> users.UserStatesResponse:
        self.user_states.append(request)
        code = self.user_errors.pop(0) if self.user_errors else 0
        return users.UserStatesResponse(error_code=code, broker_epoch=self.broker_epoch)

    @property
    def users(self) -> dict[str, users.UserState]:
        """Latest received users by name."""
        return {user.name: user for user in self.user_states[-1].users} if self.user_states else {}

    def _disable(
        self, request: control.DisableRemoteTopicRequest
    ) -> control.DisableRemoteTopicResponse:
        self.disable_requests.append(request)
        # A test decides whether brokers acknowledge or let the operator wait.
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        results = []
        for partition in request.partitions:
            row = self.rows[names[request.topic_id], partition]
            done = ErrorCode.none if self.acknowledge_disable else ErrorCode.request_timed_out
            results.append(
                control.DisableRemoteTopicResult(
                    partition=partition,
                    error_code=int(done),
                    leader_epoch=row.leader_epoch,
                    is_leader=row.leader == self.node_id,
                    local_log_start_offset=0,
                    message="",
                )
            )
        return control.DisableRemoteTopicResponse(
            error_code=0,
            broker_epoch=self.broker_epoch,
            tiered_epoch=request.tiered_epoch,
            results=tuple(results),
        )

    def _logs(self, request: control.ReplicaLogInfoRequest) -> control.ReplicaLogInfoResponse:
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        found = []
        for topic in request.topics:
            for partition in topic.partitions:
                key = names.get(topic.topic_id, ""), partition
                if key not in self.rows:  # the question has overtaken the states
                    found.append(_unknown_log(topic.topic_id, partition))
                    continue
                end, lost = self.logs.get(key, (0, 0)), self.lost.get(key, (-1, -1))
                found.append(
                    control.ReplicaLog(
                        topic_id=topic.topic_id,
                        partition=partition,
                        error_code=int(ErrorCode.kafka_storage_error) if end is None else 0,
                        last_epoch=-1 if end is None else end[0],
                        next_offset=-1 if end is None else end[1],
                        leader_epoch=self.rows[key].leader_epoch,
                        lost_start_offset=lost[0],
                        lost_end_offset=lost[1],
                    )
                )
        return control.ReplicaLogInfoResponse(
            error_code=0, broker_epoch=self.broker_epoch, logs=tuple(found)
        )

    def _leads(self, topic_id: uuid.UUID, partition: int, leader_epoch: int) -> tuple[str, int]:
        """Return the topic's name, or the error code for an unknown topic or another epoch."""
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        row = self.rows.get((names.get(topic_id, ""), partition))
        if row is None:
            return "", int(ErrorCode.unknown_topic_id)
        wrong = row.leader_epoch != leader_epoch
        return names[topic_id], int(ErrorCode.fenced_leader_epoch) if wrong else 0

    def _points(self, request: deletions.DeletionPointsRequest) -> deletions.DeletionPointsResponse:
        """Resolve offsets and times; all records are of the first epoch and have ten bytes."""
        found = []
        for point_request in request.partitions:
            name, error = self._leads(
                request.topic_id, point_request.partition, point_request.leader_epoch
            )
            start = self.deleted.get((name, point_request.partition), 0)
            # A negative offset means up to the high watermark
            # (DeleteRecordsRequest.HIGH_WATERMARK).
            offset = (
                self.high_watermark
                if point_request.before_offset < 0
                else point_request.before_offset
            )
            if point_request.before_time_ms >= 0:
                by_time = self.offset_of_time(point_request.before_time_ms)
                offset = self.high_watermark if by_time < 0 else by_time
            found.append(
                deletions.DeletionPoint(
                    partition=point_request.partition,
                    error_code=error,
                    log_start_offset=start,
                    high_watermark=self.high_watermark,
                    offset=offset,
                    last_epoch=0,
                    size_bytes=10 * max(0, offset - start),
                )
            )
        return deletions.DeletionPointsResponse(error_code=0, points=tuple(found))

    def _delete(
        self, request: deletions.DeleteTopicRecordsRequest
    ) -> deletions.DeleteTopicRecordsResponse:
        done = []
        for below in request.partitions:
            name, error = self._leads(request.topic_id, below.partition, below.leader_epoch)
            key = name, below.partition
            if not error:
                # The log start never moves backwards.
                self.deleted[key] = max(self.deleted.get(key, 0), below.offset)
            done.append(
                deletions.PartitionDeletionResult(
                    partition=below.partition,
                    error_code=error,
                    low_watermark=-1 if error else self.deleted[key],
                    lost_from_offset=-1,
                )
            )
        return deletions.DeleteTopicRecordsResponse(error_code=0, results=tuple(done))
