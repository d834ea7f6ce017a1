"""Tidemark's own brokers as the engine, over their command connections.

Three rules hold for everything that is sent: requests are level-based and idempotent, they are sent
only for what is already stored, and an answer stands only for what the broker reported.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DeleteRemoteTopicResponse,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    PartitionStatesRequest,
    Removal,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
    TopicPartitions,
)
from tidemark.wire.deletions import (
    DELETE_TOPIC_RECORDS,
    DELETION_POINTS,
    DeleteTopicRecordsRequest,
    DeleteTopicRecordsResponse,
    DeletionPoint,
    DeletionPointQuery,
    DeletionPointsRequest,
    DeletionPointsResponse,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.controller import snapshot
from tidemark_operator.controller.state.commit import SliceWrite
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import RowKey
from tidemark_operator.engines.base import Engine, EngineUnavailable
from tidemark_operator.engines.own.link import EngineListener, Link, PendingChange
from tidemark_operator.engines.own.user_link import USERS_BACKOFF, UserLink
from tidemark_operator.listener.channel import Channel

logger = logging.getLogger(__name__)

R = TypeVar("R")
CALL_TIMEOUT_S = 15.0


class OwnBrokers(Engine):
    """Engine of one controller term, owned by the main loop.

    Requests raise :class:`EngineUnavailable`.
    """

    def __init__(
        self,
        state: ControllerState,
        listener: EngineListener,
        *,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare the engine of a term without connections; :meth:`attach` adds them.

        ``begin``, if given, returns once the new term may send commands to brokers.
        """
        self._state = state
        self._begin = begin
        self._listener = listener
        self._links: dict[int, Link] = {}  # By node id: sends partition states.
        self._users: dict[int, UserLink] = {}  # By node id: sends users and credentials.
        #: By node id: broker epoch, and connections in a row that ended during UserStates.
        self._user_failures: dict[int, tuple[int, int]] = {}
        #: One task for each connection that is served.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Persisted changes that ``flush`` sends to all brokers.
        self._stored: PendingChange = PendingChange()
        #: By node id: replicas that the next ``flush`` tells a broker to delete.
        self._removals: dict[int, list[Removal]] = {}

    # ------------------------------------------------------------ connections

    def attach(self, channel: Channel) -> None:
        """Attach a broker's command connection; it receives a full snapshot first."""
        link = Link(channel, self._listener, full=self._full, delta=self._delta, begin=self._begin)
        users = UserLink(channel, self._listener, lambda: snapshot.users(self._state))
        self._links[channel.broker_id], self._users[channel.broker_id] = link, users
        task = asyncio.get_running_loop().create_task(self._serve(link, users))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, link))

    async def _serve(self, link: Link, users: UserLink) -> None:
        """Send partition states and users over one command connection until it ends.

        Afterwards, count whether the connection ended during a UserStates request: the next
        connection then waits before it sends users.
        """
        # Users are sent beside the states; their failure must not delay an election.
        telling = asyncio.create_task(self._serve_users(link, users))
        try:
            await link.run()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            # A broker of an earlier version closes the connection at an unknown request.
            if users.is_under_way:
                self._user_failures[link.node_id] = (
                    link.channel.broker_epoch,
                    self._failures(link) + 1,
                )
            elif users.acknowledged_version:
                self._user_failures.pop(link.node_id, None)

    def _failures(self, link: Link) -> int:
        broker_epoch, failures = self._user_failures.get(link.node_id, (-1, 0))
        return failures if broker_epoch == link.channel.broker_epoch else 0

    async def _serve_users(self, link: Link, users: UserLink) -> None:
        """Send users to a broker until its connection ends, after its partition states."""
        await link.until_ready()
        # A broker that does not know UserStates closes the connection and reconnects at once. The
        # pause keeps it from doing so in a loop.
        if failures := self._failures(link):
            pause_s = USERS_BACKOFF.pause_s(failures)
            logger.warning(
                "broker %d closed the connection during UserStates; retry in %.0f s",
                link.node_id,
                pause_s,
            )
            await asyncio.sleep(pause_s)
        try:
            await users.run()
        except Exception:
            # Close the connection: the broker reconnects and receives all states and users again.
            logger.exception("UserStates for broker %d failed", link.node_id)
            link.channel.close_threadsafe()

    def _ended(self, task: asyncio.Task[None], link: Link) -> None:
        self._tasks.discard(task)
        # A newer connection of the same broker may have replaced this one.
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id], self._users[link.node_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the link to broker %d failed", link.node_id, exc_info=error)

    async def close(self) -> None:
        """End every connection at the end of the term."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def connected(self, node_id: int) -> bool:
        """Return whether the broker has applied its snapshot and accepts requests."""
        link = self._links.get(node_id)
        return link is not None and link.snapshot_applied and not link.channel.closed

    # ------------------------------------------------------------ states

    def slice_stored(self, state: ControllerState, write: SliceWrite) -> None:
        """Note a slice's write that took effect, before the state advances; ``flush`` sends it.

        Elections are sent as soon as their own slice is stored, without waiting for the rest of the
        group: their partitions accept no writes until then. The links send the state after it has
        advanced, in a later turn of the loop.
        """
        self._stored.add(rows=[row.key for row in write.rows])
        changed = ((state.row(row.key), row) for row in write.rows)
        elects = any(
            old is not None and old.leader_epoch != new.leader_epoch for old, new in changed
        )
        for node_id, removals in snapshot.removals_of(state, write).items():
            self._removals.setdefault(node_id, []).extend(removals)
        if elects:
            self.flush()

    def flush(self) -> None:
        """Send every broker what was stored since the last call, brokers' states included."""
        # Taken at once: writes that are stored during the loop belong to the next call.
        stored, self._stored = self._stored, PendingChange()
        removals, self._removals = self._removals, {}
        for node_id, link in self._links.items():
            link.add(rows=stored.rows, removals=removals.get(node_id, ()))

    def publish(self, *, rows: Iterable[RowKey] = (), topics: Iterable[str] = ()) -> None:
        """Send changed rows and Topics (by object key) to every broker until it has acknowledged
        them.

        If both are empty, only the brokers' states are sent.
        """
        rows, topics = set(rows), set(topics)
        # A Topic's change concerns all of its rows.
        for key in topics:
            topic = self._state.topics.get(key)
            if topic is not None:
                rows.update((topic.id, partition) for partition in self._state.rows_of(topic.id))
        for link in self._links.values():
            link.add(rows=rows, topics=topics)

    def publish_users(self) -> None:
        """Send the present users and authorization to every broker until it has acknowledged
        them.
        """
        for users in self._users.values():
            users.wake()

    def users_behind(self, version: int) -> list[int]:
        """Return the connected brokers that have not acknowledged a version of the users, by id."""
        return sorted(
            node_id
            for node_id, users in self._users.items()
            if users.acknowledged_version < version
        )

    def _full(self) -> PartitionStatesRequest:
        return snapshot.full(self._state)

    def _delta(self, change: PendingChange) -> PartitionStatesRequest:
        return snapshot.delta(
            self._state,
            rows=change.rows,
            topics=change.topics,
            removals=tuple(change.removals.values()),
        )

    # ------------------------------------------------------------ requests

    async def disable_tiering(
        self, node_id: int, request: DisableRemoteTopicRequest
    ) -> DisableRemoteTopicResponse:
        """Send KIP-950's request to one broker."""
        timeout_s = request.timeout_ms / 1000 + CALL_TIMEOUT_S
        response = await self._call(node_id, request, DisableRemoteTopicResponse, timeout_s)
        _check(node_id, response.error_code)
        return response

    async def empty_tier(
        self, node_id: int, request: DeleteRemoteTopicRequest
    ) -> DeleteRemoteTopicResponse:
        """Remove a deleted topic's data from the tier through one broker."""
        return await self._call(node_id, request, DeleteRemoteTopicResponse, 2 * CALL_TIMEOUT_S)

    async def replica_logs(self, node_id: int, keys: Iterable[RowKey]) -> ReplicaLogInfoResponse:
        """Query the log ends of a broker's replicas (KIP-966)."""
        # Partitions of one topic share an entry.
        by_topic = itertools.groupby(sorted(keys), key=lambda key: key[0])
        request = ReplicaLogInfoRequest(
            controller_epoch=self._state.controller_epoch,
            topics=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(part for _, part in group))
                for topic_id, group in by_topic
            ),
        )
        response = await self._call(node_id, request, ReplicaLogInfoResponse, CALL_TIMEOUT_S)
        _check(node_id, response.error_code)
        return response

    async def deletion_points(
        self, node_id: int, topic_id: UUID, queries: Sequence[DeletionPointQuery]
    ) -> Sequence[DeletionPoint]:
        """Query offsets by topic id and leader epoch, which Kafka's ListOffsets cannot do."""
        self._check_knows(node_id, DELETION_POINTS)
        request = DeletionPointsRequest(
            controller_epoch=self._state.controller_epoch,
            topic_id=topic_id,
            partitions=tuple(queries),
        )
        response = await self._call(node_id, request, DeletionPointsResponse, 2 * CALL_TIMEOUT_S)
        _check(node_id, response.error_code)
        return response.points

    async def delete_records(
        self,
        node_id: int,
        topic_id: UUID,
        deletions: Sequence[PartitionDeletion],
        timeout_ms: int,
    ) -> Sequence[PartitionDeletionResult]:
        """Delete records by topic id and leader epoch, which Kafka's DeleteRecords cannot do.

        A broker whose followers need longer than ``timeout_ms`` answers with a timeout; the caller
        then repeats the request, which is idempotent.
        """
        self._check_knows(node_id, DELETE_TOPIC_RECORDS)
        request = DeleteTopicRecordsRequest(
            controller_epoch=self._state.controller_epoch,
            topic_id=topic_id,
            timeout_ms=timeout_ms,
            partitions=tuple(deletions),
        )
        # The broker answers after its own timeout at the latest; the network may add to that.
        timeout_s = timeout_ms / 1000 + CALL_TIMEOUT_S
        response = await self._call(node_id, request, DeleteTopicRecordsResponse, timeout_s)
        _check(node_id, response.error_code)
        return response.results

    def _check_knows(self, node_id: int, command: int) -> None:
        """Raise if a broker does not know a command.

        It would close its connection over it, and its whole state would have to be sent again.
        """
        link = self._links.get(node_id)
        if link is not None and link.channel.last_command < command:
            raise EngineUnavailable(
                f"broker {node_id} has an earlier version without record deletion. Upgrade it"
            )

    async def _call(
        self, node_id: int, request: Any, response_type: type[R], timeout_s: float
    ) -> R:
        """Send a request over a broker's command connection. Raises ``EngineUnavailable``."""
        link = self._links.get(node_id)
        if link is None or not link.snapshot_applied:
            raise EngineUnavailable(f"broker {node_id} has no command connection")
        try:
            return await link.channel.call(request, response_type, timeout_s)
        except (ConnectionError, TimeoutError) as error:
            why = str(error) or f"no answer in {timeout_s:.0f} s"
            raise EngineUnavailable(f"broker {node_id}: {why}") from error


def _check(node_id: int, error_code: int) -> None:
    """Raise for an answer with an error of its own, which has no results."""
    if error_code:
        raise EngineUnavailable(f"broker {node_id} answered error {error_code}")
