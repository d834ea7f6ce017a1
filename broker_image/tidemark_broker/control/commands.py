"""Commands of the controller and their answers.

``PartitionStates`` and ``UserStates`` are applied in the order of arrival, and later requests start
only after them. Other commands run concurrently and may be answered out of order. States never wait
for commands: commands beyond a limit wait for their turn (except those that an election waits for),
and beyond a second limit they are dropped. The controller repeats commands without an answer.
Requests of an older controller epoch are rejected.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.deletions import (
    DELETE_TOPIC_RECORDS,
    DELETION_POINTS,
    DeleteTopicRecordsRequest,
    DeleteTopicRecordsResponse,
    DeletionPointsRequest,
    DeletionPointsResponse,
)
from tidemark.wire.framing import (
    FrameError,
    decode_request,
    encode_response,
    peek_request,
)
from tidemark.wire.receiver import Frame
from tidemark.wire.users import USER_STATES, UserStatesRequest, UserStatesResponse
from tidemark_broker.control.disablement_tasks import DisablementTasks
from tidemark_broker.control.epoch_file import ControllerEpoch
from tidemark_broker.control.record_deletions import delete_topic_records, deletion_points
from tidemark_broker.control.replica_states import replica_logs
from tidemark_broker.log import StorageError
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.remote import RemoteUnavailable
from tidemark_broker.replication.threads import ThreadPool
from tidemark_broker.security.user_store import UserSnapshot, UserStore
from tidemark_broker.tasks import cancel, start_in

logger = logging.getLogger(__name__)
Q = TypeVar("Q")

_Answer = (
    control.DisableRemoteTopicResponse
    | control.DeleteRemoteTopicResponse
    | control.ReplicaLogInfoResponse
    | DeletionPointsResponse
    | DeleteTopicRecordsResponse
)
#: Takes a Kafka request's frame and a peer's name; returns the pieces of the answer's frame.
Serve = Callable[[Frame, str], Awaitable[Sequence[bytes] | None]]

#: Larger sets of users are decoded in a thread, since each change contains all of them.
_LONG_BYTES = 64 * 1024
_in_thread = ThreadPool("users", threads=1)
#: Sent with Attach, so that the controller sends no command that would close the connection.
LAST_COMMAND = DELETE_TOPIC_RECORDS
AT_ONCE = 32
WAITING_MAX = 1024
#: Commands that are answered from memory and that an election waits for.
URGENT = frozenset({control.REPLICA_LOG_INFO})
_STALE = int(ErrorCode.stale_controller_epoch.value)
_TIMED_OUT = int(ErrorCode.request_timed_out.value)
_STORAGE = int(ErrorCode.kafka_storage_error.value)


class CommandSlots:
    """Commands of one connection: at most :data:`AT_ONCE` running and :data:`WAITING_MAX`
    waiting.
    """

    def __init__(self, work: Callable[[Frame], Coroutine[None, None, None]]) -> None:
        self._work = work
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def take(self, frame: Frame, *, urgent: bool = False) -> bool:
        """Start a command now or later, an ``urgent`` one now.

        Return False if too many wait. Never blocks.
        """
        if not urgent and len(self._tasks) >= AT_ONCE + WAITING_MAX:
            return False
        start_in(self._tasks, self._work(frame) if urgent else self._in_turn(frame))
        return True

    async def _in_turn(self, frame: Frame) -> None:
        async with self._slots:
            await self._work(frame)

    async def close(self) -> None:
        """Drop waiting commands and cancel running ones."""
        await cancel(self._tasks)


class CommandServer:
    """Server for the commands that the leading controller sends over an attached connection.

    One connection is served at a time. ``serve_kafka`` handles ordinary Kafka requests of the
    operator. ``snapshot_applied`` is called with the controller epoch of each full snapshot of
    partition states, before the snapshot is acknowledged.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        epoch: ControllerEpoch,
        disablements: DisablementTasks,
        *,
        serve_kafka: Serve,
        snapshot_applied: Callable[[int], Awaitable[None]],
        users: UserStore,
    ) -> None:
        """Create the server. :meth:`run` serves one connection of the controller."""
        self._manager = manager
        #: Highest controller epoch that this broker has obeyed. Commands of an older one are
        #: rejected.
        self._epoch = epoch
        #: Work of disabling remote storage per partition (KIP-950).
        self._disablements = disablements
        self._serve_kafka = serve_kafka
        self._snapshot_applied = snapshot_applied
        #: Users, ACLs and quotas that the controller distributes.
        self._users = users

    async def run(self, connection: KafkaConnection, broker_epoch: int) -> None:
        """Read and execute commands until the connection ends (raises) or the task is cancelled.

        ``broker_epoch`` is that of this session and is returned in the responses.
        """
        # Runs a limited number of commands in tasks, and queues more.
        turns = CommandSlots(lambda frame: self._one(connection, frame, broker_epoch))
        try:
            while True:
                frame = await connection.read_frame()
                key, _, correlation_id = peek_request(frame)
                # States are applied in this loop, one after the other. A command that arrived later
                # can therefore rely on the states before it.
                if key == control.PARTITION_STATES:
                    states = _body(control.PartitionStatesRequest, frame)
                    answer = await self._states(states, broker_epoch)
                    connection.write(encode_response(answer, correlation_id))
                elif key == USER_STATES:
                    users = await self._user_states(frame, broker_epoch)
                    connection.write(encode_response(users, correlation_id))
                # All other commands run in tasks of their own, and may complete in any order.
                elif not turns.take(frame, urgent=key in URGENT):
                    logger.warning("command dropped: %d commands are waiting", WAITING_MAX)
        finally:
            await turns.close()

    async def _one(self, connection: KafkaConnection, frame: Frame, broker_epoch: int) -> None:
        try:
            pieces = await self._answer(frame, connection.peer, broker_epoch)
            # A controller that does not read must not make the broker buffer answers without limit.
            await connection.drain()
            for piece in pieces or ():
                connection.write(piece)
        except (ConnectionError, FrameError) as error:
            logger.warning("a command of the controller was not answered: %s", error)
            await connection.close()
        except Exception:
            logger.exception("a command of the controller failed")
            await connection.close()

    async def _answer(self, frame: Frame, peer: str, broker_epoch: int) -> Sequence[bytes] | None:
        """Execute one command and return the pieces of its response frame.

        A key that is not an internal command is an ordinary Kafka request of the operator. None
        means that the request has no response.
        """
        key, _, correlation_id = peek_request(frame)
        answer: _Answer
        # Each handler checks the controller epoch itself, since a superseded controller may still
        # be connected.
        if key == control.DISABLE_REMOTE_TOPIC:
            answer = await self._disable(
                _body(control.DisableRemoteTopicRequest, frame), broker_epoch
            )
        elif key == control.DELETE_REMOTE_TOPIC:
            answer = await self._delete(_body(control.DeleteRemoteTopicRequest, frame))
        elif key == control.REPLICA_LOG_INFO:
            answer = self._logs(_body(control.ReplicaLogInfoRequest, frame), broker_epoch)
        elif key == DELETION_POINTS:
            answer = await self._points(_body(DeletionPointsRequest, frame))
        elif key == DELETE_TOPIC_RECORDS:
            answer = await self._delete_records(_body(DeleteTopicRecordsRequest, frame), peer)
        else:
            return await self._serve_kafka(frame, peer)
        return [encode_response(answer, correlation_id)]

    async def _states(
        self, request: control.PartitionStatesRequest, broker_epoch: int
    ) -> control.PartitionStatesResponse:
        """Apply partition states of the controller: leaders, ISRs, assignments and removals.

        A full snapshot replaces everything known, a change only names what differs. The response
        contains the partitions that could not be applied, or an error code for the request as a
        whole.
        """
        # The controller epoch is stored durably before anything of that controller is applied.
        # After a restart this broker still rejects an older controller.
        try:
            accepted = await self._epoch.accept(request.controller_epoch)
        except StorageError as error:
            logger.warning("the controller's epoch was not stored: %s", error)
            return _states_answer(_STORAGE, broker_epoch)
        if not accepted:
            logger.warning(
                "rejected partition states of controller %s: epoch %d is older than %d",
                request.controller_id,
                request.controller_epoch,
                self._epoch.highest,
            )
            return _states_answer(_STALE, broker_epoch)
        # Reported at the next registration. It tells a restored controller how old its state is.
        self._epoch.commit = max(self._epoch.commit, request.commit)
        # Set before the partitions are applied, so that no client is served without ACLs.
        self._users.awaited = request.users_follow
        errors = await self._manager.apply(request)
        logger.info(
            "applied a %s of controller epoch %d: %d topics, %d removals, %d errors",
            "snapshot" if request.full else "change",
            request.controller_epoch,
            len(request.topics),
            len(request.removals),
            len(errors),
        )
        # The controller unfences this broker once the snapshot is reported as applied.
        if request.full:
            await self._snapshot_applied(request.controller_epoch)
        return _states_answer(0, broker_epoch, tuple(errors))

    async def _user_states(self, frame: Frame, broker_epoch: int) -> UserStatesResponse:
        """Replace all users, SCRAM credentials, ACLs and quotas by those in the request.

        Each request contains the complete set. A large one is decoded in a thread, so that the
        event loop continues.
        """
        if len(frame) > _LONG_BYTES:
            request, users = await _in_thread(self._users_of, frame)
        else:
            request, users = self._users_of(frame)
        # A superseded controller may send users that were deleted since.
        stale = self._epoch.is_stale(request.controller_epoch)
        if stale:
            logger.warning(
                "rejected users of controller epoch %d, which is too old", request.controller_epoch
            )
        else:
            self._users.take(users)
            logger.info(
                "applied %d users, ACLs are %s",
                len(request.users),
                "enforced" if request.authorize else "not enforced",
            )
        return UserStatesResponse(error_code=_STALE if stale else 0, broker_epoch=broker_epoch)

    def _users_of(self, frame: Frame) -> tuple[UserStatesRequest, UserSnapshot]:
        request = _body(UserStatesRequest, frame)
        return request, self._users.prepared(request)

    async def _disable(
        self, request: control.DisableRemoteTopicRequest, broker_epoch: int
    ) -> control.DisableRemoteTopicResponse:
        # A superseded controller may repeat a disablement that was cancelled since.
        stale = self._epoch.is_stale(request.controller_epoch)
        return control.DisableRemoteTopicResponse(
            error_code=_STALE if stale else 0,
            broker_epoch=broker_epoch,
            tiered_epoch=request.tiered_epoch,
            results=() if stale else await self._disablements.disable(request),
        )

    async def _delete(
        self, request: control.DeleteRemoteTopicRequest
    ) -> control.DeleteRemoteTopicResponse:
        """Delete a part of a topic's remote data, and return the number of remaining segments.

        The controller repeats the request until none remain. REQUEST_TIMED_OUT means that segments
        remain, and a remaining count of -1 that it is unknown.
        """
        # Deleting remote data cannot be undone, so the epoch is checked first.
        if self._epoch.is_stale(request.controller_epoch):
            return _delete_answer(_STALE, -1, "the request is of an older controller")
        remote = self._manager.remote
        if remote is None:
            return _delete_answer(_STORAGE, -1, "this broker has no remote storage")
        # One request deletes for a limited time. A repetition continues where it stopped.
        try:
            # The deletion continues over several requests; the answer tells what is left.
            remaining = await remote.delete_topic(
                request.topic_id, request.name, request.partitions, request.tiered_epoch
            )
        except RemoteUnavailable as error:
            return _delete_answer(_STORAGE, -1, str(error))
        return _delete_answer(_TIMED_OUT if remaining else 0, remaining, "")

    def _logs(
        self, request: control.ReplicaLogInfoRequest, broker_epoch: int
    ) -> control.ReplicaLogInfoResponse:
        stale = self._epoch.is_stale(request.controller_epoch)
        return control.ReplicaLogInfoResponse(
            error_code=_STALE if stale else 0,
            broker_epoch=broker_epoch,
            logs=() if stale else replica_logs(self._manager, request),
        )

    async def _points(self, request: DeletionPointsRequest) -> DeletionPointsResponse:
        stale = self._epoch.is_stale(request.controller_epoch)
        return DeletionPointsResponse(
            error_code=_STALE if stale else 0,
            points=() if stale else await deletion_points(self._manager, request),
        )

    async def _delete_records(
        self, request: DeleteTopicRecordsRequest, peer: str
    ) -> DeleteTopicRecordsResponse:
        stale = self._epoch.is_stale(request.controller_epoch)
        results = () if stale else await delete_topic_records(self._manager, request, who=peer)
        return DeleteTopicRecordsResponse(error_code=_STALE if stale else 0, results=results)


def _body(request_type: type[Q], frame: Frame) -> Q:
    _, version, _ = peek_request(frame)
    if version != 0:
        raise FrameError(f"{request_type.__name__} version {version} is not supported")
    return decode_request(request_type, frame)


def _states_answer(
    code: int, broker_epoch: int, errors: tuple[control.PartitionError, ...] = ()
) -> control.PartitionStatesResponse:
    return control.PartitionStatesResponse(
        error_code=code, broker_epoch=broker_epoch, errors=errors
    )


def _delete_answer(code: int, remaining: int, message: str) -> control.DeleteRemoteTopicResponse:
    return control.DeleteRemoteTopicResponse(
        error_code=code, remaining_segments=remaining, message=message
    )
