"""From a request's frame to its answer's frame: look up the Api, decode, handle, encode."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.tls.identity import Identity
from tidemark.wire.bounds import STRING_BYTES_MAX, Bounds
from tidemark.wire.framing import (
    FrameError,
    encode_response_pieces,
    peek_client_id,
    peek_request,
)
from tidemark.wire.receiver import Frame
from tidemark_broker.api import (
    acl_changes,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_replica_log_dirs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    large_messages,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    partition_reassignments,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from tidemark_broker.api.client import Client
from tidemark_broker.api.large_messages import LargeRequests
from tidemark_broker.api.services import Services
from tidemark_broker.api.table import Api, Call, PrivateApi, by_key
from tidemark_broker.api.throttle import Throttle
from tidemark_broker.api.time_slices import InOrder
from tidemark_broker.fair_queue import FairTurns
from tidemark_broker.memory_shares import asking
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.response_memory import AnswerMemory

#: Topics, partitions and all other elements that one request of a client may name.
_CLIENT = Bounds(elements=20_000, string_bytes=STRING_BYTES_MAX)
#: That one of a broker may: a follower names all that it follows at once.
_PEER = Bounds(elements=200_000, string_bytes=STRING_BYTES_MAX)

APIS: tuple[Api[Any, Any], ...] = (
    produce.API,
    fetch.API,
    list_offsets.API,
    metadata.API,
    delete_records.API,
    init_producer_id.API,
    offset_for_leader_epoch.API,
    describe_cluster.API,
    describe_producers.API,
    describe_topic_partitions.API,
    describe_log_dirs.API,
    alter_replica_log_dirs.API,
    sasl_handshake.API,
    sasl_authenticate.API,
    describe_acls.API,
    describe_client_quotas.API,
    acl_changes.CREATE,
    acl_changes.DELETE,
    describe_user_scram_credentials.API,
    find_coordinator.API,
    create_topics.API,
    delete_topics.API,
    create_partitions.API,
    describe_configs.API,
    list_config_resources.API,
    alter_configs.INCREMENTAL,
    alter_configs.WHOLE,
    join_group.API,
    sync_group.API,
    heartbeat.API,
    leave_group.API,
    offset_commit.API,
    offset_fetch.API,
    offset_delete.API,
    list_groups.API,
    describe_groups.API,
    delete_groups.API,
    consumer_group_heartbeat.API,
    consumer_group_describe.API,
    add_partitions_to_txn.API,
    add_offsets_to_txn.API,
    end_txn.API,
    txn_offset_commit.API,
    write_txn_markers.API,
    describe_transactions.API,
    list_transactions.API,
    elect_leaders.API,
    partition_reassignments.ALTER,
    partition_reassignments.LIST,
    update_features.API,
)


#: Open-ended answers that are made at once: of all topics, say, which may be a hundred thousand
#: elements.
TOLD_AT_ONCE = 32


def _ignore(_: float) -> None:
    """Nobody is limited."""


async def _encoded(
    api: Api[Any, Any], call: Call, answer: Any, correlation_id: int, throttle: Throttle | None
) -> Sequence[bytes] | None:
    if throttle is not None:
        throttle.tell(answer)
    if answer is None:
        return None
    answer_type = api.answer_type(call.version)
    if call.is_large or (api.open_ended and large_messages.is_large(answer)):
        threads = (
            large_messages.in_request_thread if call.is_large else large_messages.in_answer_thread
        )
        spent = _ignore if throttle is None else throttle.add
        return await large_messages.encoded(
            threads, answer, correlation_id, answer_type, spent=spent
        )
    return encode_response_pieces(answer, correlation_id, answer_type)


class Dispatcher:
    """Serves the requests of the client listener and of the command connection alike."""

    def __init__(
        self,
        services: Services,
        *,
        metrics: NetMetrics | None = None,
    ) -> None:
        self._services = services
        self._metrics = metrics
        self._large = LargeRequests()
        self._telling = FairTurns(TOLD_AT_ONCE)
        table = dict(by_key(APIS))
        table[api_versions.KEY] = api_versions.api_of(table)
        self._table = table

    async def serve(
        self, frame: Frame, memory: AnswerMemory, client: Client
    ) -> Sequence[bytes] | None:
        """The answer's frame in pieces, None where there is none.

        Raises FrameError for what is no request, an unknown Api or a version that is not served;
        CloseConnection where the protocol's answer is to end the connection.
        """
        asked = asking.set(client.who)
        try:
            return await self._limited(frame, memory, client)
        finally:
            asking.reset(asked)

    async def _limited(
        self, frame: Frame, memory: AnswerMemory, client: Client
    ) -> Sequence[bytes] | None:
        quotas = client.quotas(peek_client_id(frame)) if client.has_quotas else None
        if quotas is None:
            return await self._serve(frame, memory, client, None)
        throttle = Throttle(client, quotas)
        return await throttle.serve(self._serve(frame, memory, client, throttle))

    async def _serve(
        self, frame: Frame, memory: AnswerMemory, client: Client, throttle: Throttle | None
    ) -> Sequence[bytes] | None:
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        api = self._served(key)
        if not api.version_min <= version <= api.version_max:
            answer, answer_type = self._unserved_version(api, version)
            self._answered(api, api.version_min, began_s)  # a label for each would be anybody's
            return encode_response_pieces(answer, correlation_id, answer_type)
        call = Call(
            self._services,
            version,
            client,
            memory,
            quotas=None if throttle is None else throttle.quotas,
            order=InOrder(client.order) if api.in_order else None,
            frame_bytes=len(frame),
            client_id=peek_client_id(frame) if api.by_client_id else "",
        )
        spent = _ignore if throttle is None else throttle.add
        if not api.open_ended or api.waits:
            answer = await self._handle(api, frame, call, spent)
            self._answered(api, version, began_s)
            return await _encoded(api, call, answer, correlation_id, throttle)
        async with self._telling.turn(1, client.who):
            answer = await self._handle(api, frame, call, spent)
            self._answered(api, version, began_s)
            return await _encoded(api, call, answer, correlation_id, throttle)

    def _answered(self, api: Api[Any, Any], version: int, began_s: float) -> None:
        if self._metrics is not None:
            self._metrics.answered(api.name, version, time.perf_counter() - began_s)

    def _served(self, key: int) -> Api[Any, Any]:
        api = self._table.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not served")
        return api

    async def _handle(
        self, api: Api[Any, Any], frame: Frame, call: Call, spent: Callable[[float], None]
    ) -> Any:
        if call.order is not None:
            await call.order.begin()
        try:
            request_type = api.request_type(call.version)
            request = large_messages.small(request_type, frame)
            if request is not None:
                return await api.handler(request, call)
            call.is_large = True
            async with self._large.turn(frame, call.client.who):
                request = await large_messages.decoded(
                    large_messages.in_request_thread,
                    request_type,
                    frame,
                    _CLIENT,
                    spent=spent,
                )
                return await api.handler(request, call)
        finally:
            if call.order is not None:
                call.order.begun()

    def _unserved_version(self, api: Api[Any, Any], version: int) -> tuple[Any, Any]:
        if api.key != api_versions.KEY:
            raise FrameError(
                f"{api.name} version {version}, where {api.version_min} to {api.version_max} are "
                "served"
            )
        answer = api_versions.answer(self._table, ErrorCode.unsupported_version)
        return answer, api.answer_type(0)


class PrivateDispatcher:
    """Serves what proven brokers ask of each other; nothing else is heard there."""

    def __init__(
        self, apis: Iterable[PrivateApi[Any, Any]], metrics: NetMetrics | None = None
    ) -> None:
        self._apis = {api.key: api for api in apis}
        self._metrics = metrics

    async def serve(self, frame: Frame, memory: AnswerMemory, peer: Identity) -> Sequence[bytes]:
        """The answer's frame in pieces. Raises FrameError for what is no request of ours."""
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        api = self._apis.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not served to brokers")
        if version != 0:
            raise FrameError(f"{api.name} version {version}, where only 0 is served")
        request = large_messages.small(api.request, frame)
        is_large = request is None
        if request is None:
            request = await large_messages.decoded(
                large_messages.in_peer_thread,
                api.request,
                frame,
                _PEER,
                spent=_ignore,
            )
        answer = await api.handler(request, peer, memory)
        if self._metrics is not None:
            self._metrics.answered(api.name, version, time.perf_counter() - began_s)
        if not is_large:
            return encode_response_pieces(answer, correlation_id, api.answer)
        return await large_messages.encoded(
            large_messages.in_peer_thread, answer, correlation_id, api.answer, spent=_ignore
        )
