"""From a request's frame to its answer's frame: look up the Api, decode, handle, encode."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import (
    FrameError,
    decode_request,
    encode_response_pieces,
    peek_request,
)
from tidemark.wire.receiver import Frame
from tidemark_broker.api import (
    api_versions,
    delete_records,
    describe_cluster,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from tidemark_broker.api.services import Services
from tidemark_broker.api.table import Api, Call, PrivateApi, by_key
from tidemark_broker.net.metrics import NetMetrics

#: Topics, partitions and all other elements that one request of a client, or of a follower, may name.
ELEMENTS_MAX = 200_000

APIS: tuple[Api[Any, Any], ...] = (
    produce.API,
    fetch.API,
    list_offsets.API,
    metadata.API,
    delete_records.API,
    offset_for_leader_epoch.API,
    describe_cluster.API,
)


class Dispatcher:
    """Serves the requests of the client listener and of the control connection alike."""

    def __init__(
        self,
        services: Services,
        *,
        private: Iterable[PrivateApi[Any, Any]] = (),
        metrics: NetMetrics | None = None,
    ) -> None:
        self._services = services
        self._metrics = metrics
        self._private = {api.key: api for api in private}
        table = dict(by_key(APIS))
        table[api_versions.KEY] = api_versions.api_of(table)
        self._table = table

    async def serve(self, frame: Frame, peer: str) -> Sequence[bytes] | None:
        """The answer's frame in pieces, None where there is none.

        Raises FrameError for what is no request, an unknown Api or a version that is not served;
        CloseConnection where the protocol's answer is to end the connection.
        """
        began_s = time.perf_counter()
        key, version, correlation_id = peek_request(frame)
        name, answer, answer_type = await self._handle(frame, key, version, peer)
        if self._metrics is not None:
            self._metrics.answered(name, version, time.perf_counter() - began_s)
        if answer is None:
            return None
        return encode_response_pieces(answer, correlation_id, answer_type)

    async def _handle(
        self, frame: Frame, key: int, version: int, peer: str
    ) -> tuple[str, Any, Any]:
        """The Api's name, the answer, and the entity as which it is written."""
        private = self._private.get(key)
        if private is not None:
            answer = await _handle_private(private, frame, version)
            return private.name, answer, private.answer
        api = self._table.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not served")
        if not api.version_min <= version <= api.version_max:
            return self._unserved_version(api, version)
        request = decode_request(api.request_type(version), frame, elements_max=ELEMENTS_MAX)
        answer = await api.handler(request, Call(self._services, version, peer))
        return api.name, answer, api.answer_type(version)

    def _unserved_version(self, api: Api[Any, Any], version: int) -> tuple[str, Any, Any]:
        if api.key != api_versions.KEY:
            raise FrameError(
                f"{api.name} version {version}, where {api.version_min} to {api.version_max} are served"
            )
        answer = api_versions.answer(self._table, ErrorCode.unsupported_version)
        return api.name, answer, api.answer_type(0)


async def _handle_private(api: PrivateApi[Any, Any], frame: Frame, version: int) -> Any:
    if version != 0:
        raise FrameError(f"{api.name} version {version}, where only 0 is served")
    return await api.handler(decode_request(api.request, frame, elements_max=ELEMENTS_MAX))
