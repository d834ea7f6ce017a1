"""From a request's frame to its answer's frame: look up the Api, decode, handle, encode."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.wire.framing import (
    FrameError,
    client_id_of,
    decode,
    peek_request,
    request_body_offset,
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
from tidemark_broker.api.codec import encode_answer
from tidemark_broker.api.ports import Services
from tidemark_broker.api.table import Api, Call, PrivateApi, by_key
from tidemark_broker.net.metrics import NetMetrics

#: Topics, partitions and all other elements that one request of a client, or of a follower, may
#: name.
ELEMENTS_MAX = 200_000

APIS: tuple[Api, ...] = (
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
        private: Iterable[PrivateApi] = (),
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
        name, answer = await self._handle(frame, key, version, peer)
        if self._metrics is not None:
            self._metrics.answered(name, version, time.perf_counter() - began_s)
        return None if answer is None else encode_answer(answer, correlation_id)

    async def _handle(self, frame: Frame, key: int, version: int, peer: str) -> tuple[str, Any]:
        private = self._private.get(key)
        if private is not None:
            return private.name, await _handle_private(private, frame, version)
        api = self._table.get(key)
        if api is None:
            raise FrameError(f"request of Api {key}, which is not served")
        if not api.version_min <= version <= api.version_max:
            return api.name, self._unserved_version(api, version)
        request_type = api.request_type(version)
        body = request_body_offset(frame, flexible=request_type.__flexible__)
        request = decode(request_type, frame, body, elements_max=ELEMENTS_MAX)
        call = Call(
            services=self._services,
            shapes=api.shapes(key, version),
            version=version,
            client_id=client_id_of(frame),
            peer=peer,
        )
        return api.name, await api.handler(request, call)

    def _unserved_version(self, api: Api, version: int) -> Any:
        if api.key != api_versions.KEY:
            raise FrameError(
                f"{api.name} version {version}, where {api.version_min} to {api.version_max} are "
                "served"
            )
        return api_versions.answer(self._table, 0, ErrorCode.unsupported_version)


async def _handle_private(api: PrivateApi, frame: Frame, version: int) -> Any:
    if version != 0:
        raise FrameError(f"{api.name} version {version}, where only 0 is served")
    body = request_body_offset(frame, flexible=True)
    return await api.handler(decode(api.request_type, frame, body, elements_max=ELEMENTS_MAX))
