"""Kafka's admin API on one broker without sockets: the real metadata, purgatory and authorizer, and
an operator whose answers a test defines."""

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from tests.control_messages import partition_states
from tests.services import services
from tests.unit.groups.members import SETTINGS
from tidemark.wire import control
from tidemark.wire.framing import encode_response_pieces
from tidemark.wire.topics import TopicChange, TopicChangeResult
from tidemark.wire.users import Acl, UserState, UserStatesRequest
from tidemark_broker.admission.client_quotas import RequestQuotas
from tidemark_broker.admission.response_memory import ResponseBudget, ResponseMemory
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Api, Call
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.metadata import CHANGED, MetadataCache
from tidemark_broker.security.user_store import UserStore
from tidemark_broker.topic_changes.creations import Creations
from tidemark_broker.topic_changes.forwarder import ChangeForwarder, Requester

NODE = 1
ALLOW, LITERAL = 3, 3


class RecordingForwarder(ChangeForwarder):
    """Forwarder that records the requested changes. ``answer`` makes each result."""

    def __init__(self) -> None:
        self.changes: list[TopicChange] = []
        self.requesters: list[Requester] = []
        self.answer: Callable[[TopicChange], TopicChangeResult] = lambda _: result()

    async def change(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> list[TopicChangeResult]:
        self.changes += changes
        self.requesters.append(requester)
        return [self.answer(change) for change in changes]


def result(code: ErrorCode = ErrorCode.none, message: str | None = None, **fields: Any) -> Any:
    base: dict[str, Any] = {"topic_id": None, "partitions": -1, "replication_factor": -1}
    return TopicChangeResult(error_code=int(code), error_message=message, **(base | fields))


class AdminWorld:
    """Admin API of a broker. ``client`` sends the requests. Without ACLs it is allowed to do
    everything."""

    def __init__(self, entries: dict[str, str] | None = None) -> None:
        self.operator = RecordingForwarder()
        self.cluster = MetadataCache("c")
        self.purgatory = Purgatory()
        self.users = UserStore()
        self.services = services(
            self.cluster,
            # Handlers need only the node id, and whether a partition has a leader here.
            replicas=SimpleNamespace(
                context=SimpleNamespace(node_id=NODE), is_led=lambda _, row: row.leader >= 0
            ),
            purgatory=self.purgatory,
            users=self.users,
            changes=self.operator,
            creations=Creations(self.operator, self.cluster, {}),
            entries=entries or {},
            groups=SimpleNamespace(settings=SETTINGS),
        )
        self.client = Client("10.0.0.7:4000", "CLIENTS")
        #: Quotas that apply to the next request.
        self.quotas: RequestQuotas | None = None
        self._epoch = 0
        self._config: tuple[control.ConfigEntry, ...] = ()
        self._groups: tuple[control.GroupConfig, ...] = ()

    def allow(self, *acls: tuple[int, str, int]) -> None:
        """Enable authorization with these ACLs: (resource type, name, operation)."""
        made = tuple(
            Acl(
                resource_type=kind,
                resource_name=name,
                pattern_type=LITERAL,
                host="*",
                operation=operation,
                permission=ALLOW,
            )
            for kind, name, operation in acls
        )
        users = UserStatesRequest(
            controller_epoch=1,
            authorize=True,
            super_users=(),
            users=(UserState(name="alice", scram=(), acls=made),),
            quotas=(),
        )
        self.users.take(self.users.prepared(users))
        # From here on the requests come from the user to whom the ACLs apply.
        self.client = Client("10.0.0.7:4000", "CLIENTS", self.users, principal="User:alice")

    def set_cluster(self, **config: str) -> None:
        """Set the cluster's configuration. Keys have underscores for dots."""
        self._config = tuple(
            control.ConfigEntry(name=name.replace("_", "."), value=value)
            for name, value in config.items()
        )
        self._push()

    def set_group(self, name: str, **config: str) -> None:
        """Set the configuration of the one group that has one."""
        entries = tuple(
            control.ConfigEntry(name=key.replace("_", "."), value=value)
            for key, value in config.items()
        )
        self._groups = (control.GroupConfig(group_id=name, config=entries),)
        self._push()

    def topic(
        self, name: str, topic_id: uuid.UUID | None = None, *, partitions: int = 1, leader: int = 1,
        config: dict[str, str] | None = None,
        moving: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
        **fields: int,
    ) -> uuid.UUID:  # fmt: skip
        """Push a topic as the controller does. ``moving`` has (adding, removing) by partition."""
        # A row replaces the known one only if its epochs are higher.
        self._epoch += 1
        topic_id = topic_id or uuid.uuid5(uuid.NAMESPACE_URL, name)
        rows = tuple(
            control.PartitionState(
                partition=number,
                leader=leader,
                leader_epoch=self._epoch,
                partition_epoch=self._epoch,
                replicas=(1,),
                isr=(1,),
                manifest=False,
                adding=(moving or {}).get(number, ((), ()))[0],
                removing=(moving or {}).get(number, ((), ()))[1],
            )
            for number in range(partitions)
        )
        tiering = {"tiering_state": 0, "tiered_epoch": -1, "disable_policy": 0} | fields
        self._push(
            control.TopicState(
                topic_id=topic_id,
                name=name,
                config=tuple(
                    control.ConfigEntry(name=key, value=value)
                    for key, value in (config or {}).items()
                ),
                partitions=rows,
                **tiering,  # type: ignore[arg-type]
            )
        )
        return topic_id

    def remove_topic(self, topic_id: uuid.UUID) -> None:
        """Push the removal of a topic."""
        removal = control.Removal(topic_id=topic_id, partition=-1, partition_epoch=-1)
        self._push(removals=(removal,))

    def _push(
        self, *topics: control.TopicState, removals: tuple[control.Removal, ...] = ()
    ) -> None:
        states = partition_states(*topics, cluster_id="c", brokers=())
        self.cluster.apply(
            dataclasses.replace(
                states,
                full=False,
                cluster_config=self._config,
                groups=self._groups,
                removals=removals,
            )
        )
        # Requests that wait for the change check their condition now.
        self.purgatory.notify(CHANGED)

    async def send(self, api: Api[Any, Any], version: int, **fields: Any) -> Any:
        """Return the handler's response, and check that it can be encoded in this version."""
        answer = await self.handle(api, version, **fields)
        assert encode_response_pieces(answer, 1, api.answer_type(version))
        return answer

    async def handle(self, api: Api[Any, Any], version: int, **fields: Any) -> Any:
        """Return the handler's response to a request as it is decoded in this version."""
        call = Call(
            self.services,
            version,
            self.client,
            ResponseMemory(ResponseBudget(1 << 20)),
            quotas=self.quotas,
        )
        request = api.request_type(version)
        # Drop the fields that the version does not have.
        names = {field.name for field in dataclasses.fields(request)}
        made = request(**{name: value for name, value in fields.items() if name in names})
        return await api.handler(made, call)
