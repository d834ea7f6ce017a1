"""Thousands of connections of one process: those that do nothing, and the members of a large group;
and how soon a broker that starts answers the first.

The members speak the classic protocol (JoinGroup 5, SyncGroup 3) over a connection each, and do no
more than it takes: what is measured is the broker.
"""

import asyncio
import datetime
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.schema.join_group.v5.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.join_group.v5.response import JoinGroupResponse
from kio.schema.sync_group.v3.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.sync_group.v3.response import SyncGroupResponse
from kio.schema.types import GroupId
from kio.static.primitive import i8, i32Timedelta

from tidemark.wire.connection import KafkaConnection

_TIMEOUT_S = 300.0
_POLL_S = 0.005
_DIALS_AT_ONCE = 100
#: ApiVersions 0, from a client without a name, after its length.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_SESSION_MS, _REBALANCE_MS = 120_000, 300_000
_PROTOCOLS = (JoinGroupRequestProtocol(name="range", metadata=bytes(20)),)


def _address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return host, int(port)


# ---------------------------------------------------------------- those that do nothing


@contextmanager
def idle(bootstrap: str, count: int) -> Iterator[None]:
    """Open ``count`` connections to the first broker, each with one ApiVersions request."""
    sockets: list[socket.socket] = []
    try:
        # One request makes the broker treat each as a client's connection, with its buffers.
        for _ in range(count):
            sockets.append(socket.create_connection(_address(bootstrap), timeout=30))
            _ask(sockets[-1])
        yield
    finally:
        for socket_ in sockets:
            socket_.close()


def _ask(connection: socket.socket) -> None:
    """One request, and its answer to the end."""
    connection.sendall(_API_VERSIONS)
    (left,) = struct.unpack(">i", _read(connection, 4))
    _read(connection, left)


def _read(connection: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        more = connection.recv(count - len(taken))
        if not more:
            raise ConnectionError("the broker has closed the connection")
        taken += more
    return taken


def first_answer_s(bootstrap: str, start: Callable[[], object]) -> float:
    """Seconds from ``start`` to an answer of the first broker."""
    # The broker starts in a thread, so that the first attempt is made at the same moment.
    thread = threading.Thread(target=start)
    began = time.monotonic()
    thread.start()
    try:
        while True:
            try:
                with socket.create_connection(_address(bootstrap), timeout=5) as connection:
                    _ask(connection)
                    return time.monotonic() - began
            except OSError:
                if time.monotonic() - began > _TIMEOUT_S:
                    raise
            time.sleep(_POLL_S)
    finally:
        thread.join()


# ---------------------------------------------------------------- a large group


class Member:
    """One of a group."""

    def __init__(self, connection: KafkaConnection, group: str) -> None:
        self._connection = connection
        self._group = GroupId(group)
        self.id = ""
        self.leads = False

    async def join(self) -> None:
        """Join or join again, and take what the leader has given out; the leader gives each member
        four bytes. Where others came too late for a generation, there is another one."""
        error = ErrorCode.rebalance_in_progress
        while error is ErrorCode.rebalance_in_progress:
            joined = await self._join()
            # KIP-394: the first JoinGroup gives out an id, with which the member joins.
            if joined.error_code is ErrorCode.member_id_required:
                self.id = joined.member_id
                joined = await self._join()
            if joined.error_code is not ErrorCode.none:
                raise ConnectionError(f"JoinGroup: {joined.error_code.name}")
            self.id, self.leads = joined.member_id, joined.leader == joined.member_id
            # Too late for this generation: join again.
            error = await self._sync(joined)
        if error is not ErrorCode.none:
            raise ConnectionError(f"SyncGroup: {error.name}")

    async def _sync(self, joined: JoinGroupResponse) -> ErrorCode:
        """Send SyncGroup. Only the leader received the list of members."""
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self.id,
            group_instance_id=None,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=member.member_id, assignment=bytes(4))
                for member in joined.members
            ),
        )
        answer = await self._connection.request(request, SyncGroupResponse, _TIMEOUT_S)
        if answer.error_code is ErrorCode.none and len(answer.assignment) != 4:
            raise ConnectionError("SyncGroup: nothing was given")
        return answer.error_code

    async def _join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout=_milliseconds(_SESSION_MS),
            rebalance_timeout=_milliseconds(_REBALANCE_MS),
            member_id=self.id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=_PROTOCOLS,
        )
        return await self._connection.request(request, JoinGroupResponse, _TIMEOUT_S)

    async def close(self) -> None:
        """Go without a word."""
        await self._connection.close()


def rebalance(bootstrap: str, count: int) -> tuple[float, float]:
    """Return the seconds until all ``count`` members of a new group have an assignment, and
    until they have another one after a rebalance that their leader triggers.
    """
    return asyncio.run(_rebalance(bootstrap, count))


async def _rebalance(bootstrap: str, count: int) -> tuple[float, float]:
    group = f"crowd-{time.monotonic_ns()}"
    host, port = await _coordinator(_address(bootstrap), group)
    dialled: list[KafkaConnection] = []
    try:
        while len(dialled) < count:
            # Connections in batches, below the backlog of the listener's socket.
            some = min(_DIALS_AT_ONCE, count - len(dialled))
            dials = (KafkaConnection.connect(host, port, client_id="crowd") for _ in range(some))
            dialled += await asyncio.gather(*dials)
        members = [Member(connection, group) for connection in dialled]
        first = await _timed(members)
        # Only a JoinGroup of the leader rebalances a stable group without a change of members.
        members.sort(key=lambda member: not member.leads)
        return first, await _timed(members)
    finally:
        await asyncio.gather(*(connection.close() for connection in dialled))


async def _timed(members: Sequence[Member]) -> float:
    """All at once; the one that leads is heard first, since only it makes a stable group
    rebalance."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, member in enumerate(members):
            tasks.create_task(member.join())
            if number == 0:
                await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _coordinator(address: tuple[str, int], group: str) -> tuple[str, int]:
    """Return the address of the coordinator once it exists."""
    connection = await KafkaConnection.connect(*address, client_id="crowd")
    request = FindCoordinatorRequest(key=group, key_type=i8(0))
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while True:
            found: Any = await connection.request(request, FindCoordinatorResponse, 30)
            if found.error_code is ErrorCode.none:
                return found.host, found.port
            if time.monotonic() > deadline:
                raise TimeoutError(f"no coordinator: {found.error_code.name}")
            await asyncio.sleep(0.1)
    finally:
        await connection.close()


def _milliseconds(count: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=count))
