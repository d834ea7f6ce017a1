"""ApiVersions, the first request of each connection, is answered at once and encoded once."""

from collections.abc import Coroutine, Sequence

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.user_states import quota, user_states
from tidemark.wire.framing import decode_response, encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.serving.dispatcher import Dispatcher
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore


def frame(version: int, correlation_id: int, *, software: str = "library") -> memoryview:
    request = kafka.request(
        kafka.API_VERSIONS,
        version,
        client_software_name=software,
        client_software_version="1.0",
    )
    return memoryview(encode_request(request, correlation_id, "client")[4:])


@pytest.mark.parametrize("version", range(5))
async def test_cached_response_equals_a_built_one(version: int) -> None:
    dispatcher, client = Dispatcher(services(MetadataCache("c"))), Client("10.0.0.1:1", "PLAINTEXT")
    for correlation_id in (5, 6):
        at_once = dispatcher.begin(frame(version, correlation_id), room(), client)
        built = await dispatcher.serve(frame(version, correlation_id), room(), client)
        assert isinstance(at_once, list)
        assert built is not None
        assert b"".join(at_once) == b"".join(built)


async def test_illegal_software_name_is_refused_and_not_cached() -> None:
    dispatcher = Dispatcher(services(MetadataCache("c")))
    errors = []
    for software in ("first", "ill egal", "second"):
        client = Client("10.0.0.1:1", "PLAINTEXT")
        pieces = dispatcher.begin(frame(3, 1, software=software), room(), client)
        assert isinstance(pieces, Sequence)
        _, response = decode_response(kafka.answer_type(18, 3), b"".join(pieces)[4:])
        errors.append(response.error_code)
        assert client.software == ("" if " " in software else software)
    assert errors == [ErrorCode.none, ErrorCode.invalid_request, ErrorCode.none]


async def test_client_with_quotas_is_not_answered_at_once() -> None:
    users = UserStore()
    users.apply(user_states(quotas=(quota("ANONYMOUS", None, request=1),)))
    client = Client("10.0.0.1:1", "PLAINTEXT", users)
    served = Dispatcher(services(MetadataCache("c"))).begin(frame(1, 1), room(), client)
    # Its response may have a throttle time, so it is not the one that others get.
    assert isinstance(served, Coroutine)
    assert await served
