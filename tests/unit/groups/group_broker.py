"""A broker that coordinates all groups on a real log.

Requests reach it as bytes, without sockets.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tests.unit.api import api_requests as kafka
from tests.unit.groups.members import SETTINGS
from tests.unit.replication.replica_nodes import T0, ReplicaNode
from tests.user_states import user, user_states
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC
from tidemark.wire import control
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.serving.dispatcher import APIS, Dispatcher
from tidemark_broker.groups.core.settings import GroupSettings, Now
from tidemark_broker.groups.group_coordinator import GroupCoordinator
from tidemark_broker.security.user_store import UserStore

LISTENER = "PLAINTEXT"
OFFSETS_ID, TOPIC_ID = uuid.UUID(int=1), uuid.UUID(int=2)
VERSIONS = {api.name: api.served for api in APIS}
KEYS = {api.name: api.key for api in APIS}
NONE = ErrorCode.none


def settings(**changes: Any) -> GroupSettings:
    known = {name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__}
    return GroupSettings(**(known | {"initial_rebalance_delay_ms": 0} | changes))


def row(
    epoch: int, leader: int = 1, replicas: tuple[int, ...] = (1,), partition: int = 0
) -> control.PartitionState:
    return control.PartitionState(
        partition=partition,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=replicas,
        isr=replicas,
        manifest=False,
    )


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition does not become true within 5 s")


class GroupBroker:
    """Broker that coordinates all groups, with its clients' requests."""

    def __init__(self, folder: Path, users: UserStore | None = None, **changes: Any) -> None:
        self.node, self.wall_ms = ReplicaNode(1, folder), T0
        context = self.node.context
        self.groups = GroupCoordinator(
            settings(**changes),
            cluster=context.metadata,
            purgatory=context.purgatory,
            request_topic=lambda _: None,
            clock=lambda: Now(self.node.now_s, self.wall_ms),
        )
        context.role_changed.append(self.groups.coordinators.role_changed)
        services: Any = SimpleNamespace(
            cluster=context.metadata,
            groups=self.groups,
            # Topics come only from the partition states that `leads` applies.
            creations=SimpleNamespace(request=lambda _: None),
        )
        self.dispatcher = Dispatcher(services)
        self.users = users
        # Memory for answers: as good as unlimited, unless a test lowers it.
        self.answer_bytes = 1 << 30
        self.peer = "10.0.0.1:1"

    async def leads(self, epoch: int, **more: Any) -> None:
        """Apply an epoch of ``__consumer_offsets``, beside a topic ``t`` of one partition."""
        brokers = tuple(
            control.BrokerState(broker_id=n, broker_epoch=n, rack=None, fenced=False, listeners=())
            for n in (1, 2)
        )
        await self.node.manager.apply(
            partition_states(
                topic_state(OFFSETS_ID, GROUP_OFFSETS_TOPIC, partitions=(row(epoch, **more),)),
                topic_state(TOPIC_ID, "t", partitions=(row(0, leader=2, replicas=(2,)),)),
                brokers=brokers,
            )
        )

    async def loaded(self) -> None:
        await until(lambda: not self.groups.coordinators.loading)

    async def ask(self, name: str, version: int | None = None, **fields: Any) -> Any:
        """Return the answer to a request, in the newest version or in ``version``."""
        version = VERSIONS[name][-1] if version is None else version
        request = kafka.request(KEYS[name], version, **fields)
        # The first four bytes are the frame's length, which the dispatcher never receives.
        frame = encode_request(request, 5, "client")[4:]
        client = Client(self.peer, LISTENER, self.users)
        pieces = await self.dispatcher.serve(memoryview(frame), room(self.answer_bytes), client)
        assert pieces is not None
        answer_type = kafka.answer_type(KEYS[name], version)
        return decode_response(answer_type, b"".join(pieces)[4:])[1]

    async def join(self, member_id: str = "", version: int = 9, **fields: Any) -> Any:
        protocol = kafka.nested(
            11, version, "JoinGroupRequestProtocol", name="range", metadata=b"m"
        )
        return await self.ask(
            "JoinGroup",
            version,
            **{
                "group_id": "g",
                "session_timeout": kafka.duration(10_000),
                "rebalance_timeout": kafka.duration(60_000),
                "member_id": member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": (protocol,),
                "reason": None,
            }
            | fields,
        )

    async def sync(
        self, member_id: str, generation_id: int, version: int = 5, **assignments: bytes
    ) -> Any:
        given = tuple(
            kafka.nested(14, version, "SyncGroupRequestAssignment", member_id=m, assignment=a)
            for m, a in assignments.items()
        )
        return await self.ask(
            "SyncGroup",
            version,
            group_id="g",
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )

    async def member(self) -> str:
        """Return the id of the only member of a stable group."""
        member_id = (await self.join()).member_id
        # The first answer is MEMBER_ID_REQUIRED with the new id (KIP-394).
        joined = await self.join(member_id)
        assert (joined.error_code, joined.leader) == (NONE, member_id)
        synced = await self.sync(member_id, joined.generation_id, **{member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (NONE, b"all")
        return str(member_id)

    async def commit(
        self,
        member_id: str = "",
        generation_id: int = -1,
        version: int = 10,
        *,
        offset: int = 7,
        partition: int = 0,
        topic: str = "t",
        topic_id: uuid.UUID = TOPIC_ID,
        group_id: str = "g",
    ) -> ErrorCode:
        part = kafka.nested(
            8,
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata="text",
        )
        named = kafka.nested(
            8,
            version,
            "OffsetCommitRequestTopic",
            name=topic,
            topic_id=topic_id,
            partitions=(part,),
        )
        answer = await self.ask(
            "OffsetCommit",
            version,
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=None,
            topics=(named,),
            retention_time=kafka.duration(-1),
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def fetch(self, version: int = 10, *, everything: bool = False, **more: Any) -> Any:
        """Return the group's part of the answer."""
        # Version 8 introduced requests for several groups (KIP-709).
        kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
        named = kafka.nested(
            9, version, kind, name="t", topic_id=TOPIC_ID, partition_indexes=(0, 1)
        )
        topics = None if everything else (named,)
        if version >= 8:
            group = kafka.nested(
                9, version, "OffsetFetchRequestGroup",
                group_id="g", member_id=None, member_epoch=-1, topics=topics,
            )  # fmt: skip
            answer = await self.ask(
                "OffsetFetch", version, groups=(group,), **({"require_stable": False} | more)
            )
            return answer.groups[0]
        return await self.ask(
            "OffsetFetch",
            version,
            group_id="g",
            topics=topics,
            **({"require_stable": False} | more),
        )


@asynccontextmanager
async def broker(folder: Path, *grants: str, **changes: Any) -> AsyncIterator[GroupBroker]:
    users = None
    if grants:
        users = UserStore()
        users.apply(user_states(user("ANONYMOUS", *grants)))
    made = GroupBroker(folder, users, **changes)
    task = asyncio.create_task(made.groups.run())
    try:
        await made.leads(1)
        await made.loaded()
        yield made
    finally:
        await made.groups.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.node.stop()
