"""Requests of clients and brokers: look up the Api, decode the frame, handle it, encode the
answer.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from tidemark_broker.admission.arrival_order import Place
from tidemark_broker.admission.client_quotas import RequestQuotas
from tidemark_broker.admission.fair_share import FairQueue, requesting_client
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.api import large_messages
from tidemark_broker.api.client import Client
from tidemark_broker.api.cluster import api_versions, describe_cluster, log_dirs
from tidemark_broker.api.configs import alter_configs, describe_configs
from tidemark_broker.api.groups import (
    classic_groups,
    consumer_groups,
    find_coordinator,
    group_admin,
    offset_commits,
    offset_fetch,
)
from tidemark_broker.api.records import delete_records, fetch, offset_lookups, produce
from tidemark_broker.api.security import acl_requests, sasl_requests, user_requests
from tidemark_broker.api.services import HandlerServices
from tidemark_broker.api.table import Api, Call, PrivateApi, by_key
from tidemark_broker.api.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
    elect_leaders,
    metadata,
    partition_reassignments,
)
from tidemark_broker.api.transactions import producer_transactions, transaction_admin
from tidemark_broker.net.connection import Served
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.tasks import Deferred

#: Topics, partitions and other elements that one request of a client may contain.
_CLIENT = MessageBounds(elements=20_000, string_bytes=STRING_BYTES_MAX)
#: Limit of a broker's request: a follower names all partitions that it follows at once.
_PEER = MessageBounds(elements=200_000, string_bytes=STRING_BYTES_MAX)

APIS: tuple[Api[Any, Any], ...] = (
    # records
    produce.API,
    fetch.API,
    offset_lookups.LIST_OFFSETS,
    offset_lookups.EPOCH_ENDS,
    delete_records.API,
    # topics
    metadata.API,
    describe_topic_partitions.API,
    create_topics.API,
    create_partitions.API,
    delete_topics.API,
    elect_leaders.API,
    partition_reassignments.ALTER,
    partition_reassignments.LIST,
    # groups
    find_coordinator.API,
    classic_groups.JOIN,
    classic_groups.SYNC,
    classic_groups.HEARTBEAT,
    classic_groups.LEAVE,
    consumer_groups.HEARTBEAT,
    consumer_groups.DESCRIBE,
    group_admin.LIST,
    group_admin.DESCRIBE,
    group_admin.DELETE,
    offset_commits.COMMIT,
    offset_commits.COMMIT_IN_TRANSACTION,
    offset_commits.DELETE,
    offset_fetch.API,
    # transactions
    producer_transactions.INIT_PRODUCER_ID,
    producer_transactions.ADD_PARTITIONS,
    producer_transactions.ADD_OFFSETS,
    producer_transactions.END,
    transaction_admin.DESCRIBE_TRANSACTIONS,
    transaction_admin.LIST_TRANSACTIONS,
    transaction_admin.DESCRIBE_PRODUCERS,
    transaction_admin.WRITE_MARKERS,
    # configs
    describe_configs.DESCRIBE,
    describe_configs.LIST_RESOURCES,
    alter_configs.INCREMENTAL,
    alter_configs.WHOLE,
    # cluster; ApiVersions is derived from this table
    api_versions.UPDATE_FEATURES,
    describe_cluster.API,
    log_dirs.DESCRIBE,
    log_dirs.ALTER,
    # security
    sasl_requests.HANDSHAKE,
    sasl_requests.AUTHENTICATE,
    acl_requests.DESCRIBE,
    acl_requests.CREATE,
    acl_requests.DELETE,
    user_requests.DESCRIBE_QUOTAS,
    user_requests.DESCRIBE_SCRAM,
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

    def begin(self, frame: Frame, memory: ResponseMemory, client: Client) -> Served:
        """Serve a request at once, or return the coroutine that serves the rest of it.

        A Produce is appended here if possible, even if its response waits for other replicas. A
        task for each request would cost as much as the append of a small batch.
        """
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        api = self._table.get(key)
        if api is None or not api.begin or not api.versions[0] <= version <= api.versions[1]:
            return self.serve(frame, memory, client)
        # It must not overtake an earlier request that waits. Quotas are measured by ``serve``. Its
        # place is taken now: a later request may be served before this coroutine starts.
        if client.has_quotas or client.order:
            return self.serve(frame, memory, client, client.order.take())
        call = Call(
            self._services,
            version,
            client,
            memory,
            frame_bytes=len(frame),
            correlation_id=correlation_id,
        )
        # Most requests of a client without linger are the same but for their records.
        repeats, repeated = api.repeats, None
        answer: Any = None
        # Only Produce has ``repeats``. A second Api with it would need its own ``client.repeats``,
        # because a look-up does not compare the key.
        if repeats is not None:
            repeated = client.repeats.find(frame, version)
            if repeated is not None:
                answer = repeats.begin(*repeated, call, correlation_id)
        if answer is None:
            request = large_messages.small(api.request_type(version), frame)
            if request is None:
                return self.serve(frame, memory, client, client.order.take())
            answer = api.begin(request, call)
            if repeats is not None and repeated is None and repeats.accepts(request):
                client.repeats.learn(frame, version, request, repeats.with_field)
        if isinstance(answer, Deferred):
            return answer.mapped(
                lambda made: self._pieces(made, api, version, correlation_id, began_s)
            )
        if callable(answer):
            return self._finish(answer, api, call, correlation_id, began_s)
        return self._pieces(answer, api, version, correlation_id, began_s)

    def _pieces(
        self,
        answer: Any,
        api: Api[Any, Any],
        version: int,
        correlation_id: int,
        began_s: float,
    ) -> Sequence[bytes] | None:
        """Count an answered request, and return its response frame in pieces."""
        self._answered(api, version, began_s)
        if type(answer) is bytes:
            return [answer]
        if answer is None:
            return None
        return encode_response_pieces(answer, correlation_id, api.answer_type(version))

    async def serve(
        self, frame: Frame, memory: ResponseMemory, client: Client, place: Place | None = None
    ) -> Sequence[bytes] | None:
        """Serve a request; return the answer's frame in pieces, or None without an answer.

        ``place`` is that of the request in the order of its connection, if it was taken already.
        Raises ``FrameError`` for an invalid frame, an unknown Api or an unsupported version. Raises
        ``CloseConnection`` where the protocol's answer is to close the connection.
        """
        # Memory that this request creates counts for its client (MemoryShares).
        previous_client = requesting_client.set(client.identity)
        quotas = client.quotas(peek_client_id(frame)) if client.has_quotas else None
        try:
            # Without quotas the request takes a path that measures nothing.
            if quotas is None:
                return await self._serve(frame, memory, client, None, place)
            return await quotas.timed(self._serve(frame, memory, client, quotas, place))
        finally:
            requesting_client.reset(previous_client)
            # The response contains the throttle time already (KIP-219).
            if quotas is not None and quotas.throttle_s > 0:
                client.mute(quotas.throttle_s)

    async def _serve(
        self,
        frame: Frame,
        memory: ResponseMemory,
        client: Client,
        quotas: RequestQuotas | None,
        place: Place | None,
    ) -> Sequence[bytes] | None:
        """Look up the Api of a request, call its handler, and encode the response.

        ``quotas`` is None for a client without quotas. Raises ``FrameError`` for an unsupported
        request.
        """
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        # Only the header is read yet: the layout of the body depends on the version.
        api = self._served(key)
        first, last = api.versions
        if not first <= version <= last:
            answer, answer_type = self._unserved_version(api, version)
            self._answered(api, first, began_s)  # clients must not create metric labels
            return encode_response_pieces(answer, correlation_id, answer_type)
        call = Call(
            self._services,
            version,
            client,
            memory,
            quotas=quotas,
            place=client.order.take() if place is None and api.in_order else place,
            frame_bytes=len(frame),
            client_id=peek_client_id(frame) if api.by_client_id else "",
            correlation_id=correlation_id,
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

    async def _finish(
        self,
        wait: Callable[[], Awaitable[Any]],
        api: Api[Any, Any],
        call: Call,
        correlation_id: int,
        began_s: float,
    ) -> Sequence[bytes] | None:
        """Wait for the answer to a request that :meth:`begin` began, and encode it."""
        previous_client = requesting_client.set(call.client.identity)
        try:
            answer = await wait()
            self._answered(api, call.version, began_s)
            return await _encoded(api, call, answer, correlation_id, None)
        finally:
            requesting_client.reset(previous_client)
            if call.place is not None:
                call.place.leave()

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
                f"{api.name} version {version} is not supported; versions {api.versions[0]} to "
                f"{api.versions[1]} are"
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

    def begin(self, frame: Frame, memory: ResponseMemory, peer: TlsIdentity) -> Served:
        """Serve a request of another broker at once, or return what serves the rest of it.

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
        if request is None:
            return self._large(api, frame, memory, peer)
        if api.begin is None:
            return self._handled(api, request, memory, peer, correlation_id, began_s)
        begun = api.begin(request, peer, memory)
        if not isinstance(begun, Deferred):
            return self._pieces(begun, api, correlation_id, began_s)
        # The answer is encoded in the turn that has it.
        return begun.mapped(lambda answer: self._pieces(answer, api, correlation_id, began_s))

    async def _handled(
        self,
        api: PrivateApi[Any, Any],
        request: Any,
        memory: ResponseMemory,
        peer: TlsIdentity,
        correlation_id: int,
        began_s: float,
    ) -> Sequence[bytes]:
        """Wait for the answer to a small request, and encode it."""
        answer = await api.handler(request, peer, memory)
        return self._pieces(answer, api, correlation_id, began_s)

    def _pieces(
        self, answer: Any, api: PrivateApi[Any, Any], correlation_id: int, began_s: float
    ) -> Sequence[bytes]:
        """Count an answered request, and return its response frame in pieces."""
        if self._metrics is not None:
            self._metrics.answered(api.name, 0, time.perf_counter() - began_s)
        return encode_response_pieces(answer, correlation_id, api.answer)

    async def _large(
        self, api: PrivateApi[Any, Any], frame: Frame, memory: ResponseMemory, peer: TlsIdentity
    ) -> Sequence[bytes]:
        """Serve a request that is decoded, and whose answer is encoded, in a thread."""
        began_s = time.perf_counter()
        _, version, correlation_id = peek_request(frame)
        request = await large_messages.decoded(
            large_messages.in_peer_thread, api.request, frame, _PEER, spent=_ignore
        )
        answer = await api.handler(request, peer, memory)
        if self._metrics is not None:
            self._metrics.answered(api.name, version, time.perf_counter() - began_s)
        return await large_messages.encoded(
            large_messages.in_peer_thread, answer, correlation_id, api.answer, spent=_ignore
        )
