"""Requests of clients and brokers: look up the Api, decode the frame, handle it, encode the
answer.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.tls.identity import TlsIdentity
from tidemark.wire.bounds import STRING_BYTES_MAX, MessageBounds
from tidemark.wire.framing import (
    FrameError,
    encode_response_pieces,
    peek_client_id,
    peek_request,
)
from tidemark.wire.receiver import Frame
from tidemark_broker.admission.client_quotas import RequestQuotas
from tidemark_broker.admission.fair_share import FairQueue, requesting_client
from tidemark_broker.admission.response_memory import ResponseMemory
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
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Api, Call, PrivateApi, by_key
from tidemark_broker.net.metrics import NetMetrics

#: Topics, partitions and other elements that one request of a client may contain.
_CLIENT = MessageBounds(elements=20_000, string_bytes=STRING_BYTES_MAX)
#: Limit of a broker's request: a follower names all partitions that it follows at once.
_PEER = MessageBounds(elements=200_000, string_bytes=STRING_BYTES_MAX)

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


#: Open-ended answers that are built at the same time. An answer for all topics may have a hundred
#: thousand elements.
RESPONSES_AT_ONCE = 32


def _ignore(_: float) -> None:
    """Count the time for no quota."""


async def _encoded(
    api: Api[Any, Any], call: Call, answer: Any, correlation_id: int, quotas: RequestQuotas | None
) -> Sequence[bytes] | None:
    """Encode a handler's result as a response frame in pieces. None if there is no response.

    ``quotas`` is None for a client without quotas. Otherwise its throttle time is set, and the
    time of encoding in a thread counts for the quota.
    """
    if quotas is not None:
        quotas.set_throttle_time(answer)
    if answer is None:
        return None
    # The throttle time is part of the answer, so it is set before the answer is encoded.
    answer_type = api.answer_type(call.version)
    if call.is_large or (api.open_ended and large_messages.is_large(answer)):
        # Encoding a large answer takes tens of ms, which would delay every other connection.
        threads = (
            large_messages.in_request_thread if call.is_large else large_messages.in_answer_thread
        )
        spent = _ignore if quotas is None else quotas.add_time
        return await large_messages.encoded(
            threads, answer, correlation_id, answer_type, spent=spent
        )
    return encode_response_pieces(answer, correlation_id, answer_type)


class Dispatcher:
    """Serve requests of client listeners and of the operator's command connection."""

    def __init__(
        self,
        services: HandlerServices,
        *,
        metrics: NetMetrics | None = None,
    ) -> None:
        self._services = services
        self._metrics = metrics
        self._large_requests = FairQueue(large_messages.BUDGET_BYTES)
        self._large_responses = FairQueue(RESPONSES_AT_ONCE)
        table = dict(by_key(APIS))
        table[api_versions.KEY] = api_versions.api_of(table)
        self._table = table

    async def serve(
        self, frame: Frame, memory: ResponseMemory, client: Client
    ) -> Sequence[bytes] | None:
        """Serve a request; return the answer's frame in pieces, or None without an answer.

        Raises ``FrameError`` for an invalid frame, an unknown Api or an unsupported version. Raises
        ``CloseConnection`` where the protocol's answer is to close the connection.
        """
        # Memory that this request creates counts for its client (MemoryShares).
        previous_client = requesting_client.set(client.identity)
        quotas = client.quotas(peek_client_id(frame)) if client.has_quotas else None
        try:
            # Without quotas the request takes a path that measures nothing.
            if quotas is None:
                return await self._serve(frame, memory, client, None)
            return await quotas.timed(self._serve(frame, memory, client, quotas))
        finally:
            requesting_client.reset(previous_client)
            # The response contains the throttle time already (KIP-219).
            if quotas is not None and quotas.throttle_s > 0:
                client.mute(quotas.throttle_s)

    async def _serve(
        self, frame: Frame, memory: ResponseMemory, client: Client, quotas: RequestQuotas | None
    ) -> Sequence[bytes] | None:
        """Look up the Api of a request, call its handler, and encode the response.

        ``quotas`` is None for a client without quotas. Raises ``FrameError`` for an unsupported
        request.
        """
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        # Only the header is read yet: the layout of the body depends on the version.
        api = self._served(key)
        if not api.version_min <= version <= api.version_max:
            answer, answer_type = self._unserved_version(api, version)
            self._answered(api, api.version_min, began_s)  # clients must not create metric labels
            return encode_response_pieces(answer, correlation_id, answer_type)
        call = Call(
            self._services,
            version,
            client,
            memory,
            quotas=quotas,
            place=client.order.take() if api.in_order else None,
            frame_bytes=len(frame),
            client_id=peek_client_id(frame) if api.by_client_id else "",
        )
        spent = _ignore if quotas is None else quotas.add_time
        # The number of large responses that are built at a time is limited. This does not apply
        # to small responses, and not to handlers that wait for data, which would block the others.
        if not api.open_ended or api.waits:
            answer = await self._handle(api, frame, call, spent)
            self._answered(api, version, began_s)
            return await _encoded(api, call, answer, correlation_id, quotas)
        # The limit covers encoding too, since the response's objects live until it is encoded.
        async with self._large_responses.admit(1, client.identity):
            answer = await self._handle(api, frame, call, spent)
            self._answered(api, version, began_s)
            return await _encoded(api, call, answer, correlation_id, quotas)

    def _answered(self, api: Api[Any, Any], version: int, began_s: float) -> None:
        if self._metrics is not None:
            self._metrics.answered(api.name, version, time.perf_counter() - began_s)

    def _served(self, key: int) -> Api[Any, Any]:
        api = self._table.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not supported")
        return api

    async def _handle(
        self, api: Api[Any, Any], frame: Frame, call: Call, spent: Callable[[float], None]
    ) -> Any:
        """Decode the body of a request and call the Api's handler.

        ``spent`` receives the processor time in seconds that a thread has used for it.
        """
        # Requests in order start one after another, so a producer's batches keep their sequence.
        try:
            if call.place is not None:
                await call.place.wait()
            request_type = api.request_type(call.version)
            request = large_messages.small(request_type, frame)
            # A small request is decoded on the event loop at once.
            if request is not None:
                return await api.handler(request, call)
            # A large one waits until the memory of large requests has room, and is decoded in a
            # thread.
            call.is_large = True
            size = min(len(frame), large_messages.COUNTED_BYTES_MAX)
            async with self._large_requests.admit(size, call.client.identity):
                request = await large_messages.decoded(
                    large_messages.in_request_thread,
                    request_type,
                    frame,
                    _CLIENT,
                    spent=spent,
                )
                return await api.handler(request, call)
        # The next request of the connection may start even if this one failed.
        finally:
            if call.place is not None:
                call.place.leave()

    def _unserved_version(self, api: Api[Any, Any], version: int) -> tuple[Any, Any]:
        # An unsupported version of ApiVersions gets an answer, so that a newer client can
        # downgrade.
        if api.key != api_versions.KEY:
            raise FrameError(
                f"{api.name} version {version} is not supported; versions {api.version_min} to "
                f"{api.version_max} are"
            )
        answer = api_versions.answer(self._table, ErrorCode.unsupported_version)
        return answer, api.answer_type(0)


class PrivateDispatcher:
    """Serve the internal requests of authenticated brokers. Other Apis are rejected."""

    def __init__(
        self, apis: Iterable[PrivateApi[Any, Any]], metrics: NetMetrics | None = None
    ) -> None:
        self._apis = {api.key: api for api in apis}
        self._metrics = metrics

    async def serve(
        self, frame: Frame, memory: ResponseMemory, peer: TlsIdentity
    ) -> Sequence[bytes]:
        """Serve a request of another broker, and return the response frame in pieces.

        ``peer`` is the broker that the TLS handshake has authenticated. Raises ``FrameError`` for
        an unknown request.
        """
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        api = self._apis.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not supported between brokers")
        if version != 0:
            raise FrameError(f"{api.name} version {version} is not supported; only 0 is")
        # A follower may name 200,000 partitions. Decoding that takes a thread of its own pool.
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
