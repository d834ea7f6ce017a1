"""ApiVersions lists exactly the served versions; unknown Apis and versions get Kafka's answers."""

import asyncio
import struct

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as AnswerV0
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import ApiBroker
from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import decode_response
from tidemark_broker.replication.following.wire import REPLICA_FETCH

# Api key to lowest and highest version.
SERVED = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 6),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    27: (1, 2),
    28: (0, 5),
    29: (1, 3),
    30: (1, 3),
    31: (1, 3),
    32: (1, 4),
    33: (0, 2),
    34: (1, 2),
    35: (1, 5),
    36: (0, 2),
    37: (0, 3),
    42: (0, 2),
    43: (0, 2),
    44: (0, 1),
    45: (0, 1),
    46: (0, 0),
    47: (0, 0),
    48: (0, 1),
    50: (0, 0),
    57: (0, 2),
    60: (0, 2),
    61: (0, 0),
    65: (0, 0),
    66: (0, 2),
    68: (0, 1),
    69: (0, 1),
    74: (0, 1),
    75: (0, 0),
}


def _frame(key: int, version: int, body: bytes = b"", correlation_id: int = 77) -> bytes:
    header = struct.pack(">hhih", key, version, correlation_id, 0)
    return struct.pack(">i", len(header) + len(body)) + header + body


async def _raw(broker: ApiBroker, *frames: bytes) -> list[bytes]:
    """Send frames; return the answers until the broker closes or has answered each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(b"".join(frames))
    answers: list[bytes] = []
    try:
        async with asyncio.timeout(5):
            while len(answers) < len(frames):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answers.append(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        answers.append(b"closed")
    writer.close()
    return answers


@pytest.mark.parametrize("version", range(5))
async def test_every_version_lists_the_served_apis(broker: ApiBroker, version: int) -> None:
    request = kafka.request(
        18, version, client_software_name="tests", client_software_version="1.0"
    )
    answer = await broker.ask(request, kafka.answer_type(18, version))
    assert answer.error_code is ErrorCode.none
    listed = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert listed == SERVED
    # Private requests between brokers are not listed.
    assert REPLICA_FETCH not in listed


async def test_newer_version_is_answered_in_version_0(broker: ApiBroker) -> None:
    # KIP-511: a version that is too new is answered with version 0, so that clients can negotiate.
    (answer,) = await _raw(broker, _frame(18, 5, b"whatever the future holds"))
    correlation_id, read = decode_response(AnswerV0, answer)
    assert correlation_id == 77
    assert read.error_code is ErrorCode.unsupported_version
    assert {api.api_key: (api.min_version, api.max_version) for api in read.api_keys} == SERVED


async def test_client_name_must_match_the_pattern(broker: ApiBroker) -> None:
    request = kafka.request(18, 3, client_software_name="-x", client_software_version="1")
    answer = await broker.ask(request, kafka.answer_type(18, 3))
    assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (_frame(999, 0), "Api 999"),
        (_frame(0, 2), "Produce version 2"),
        (_frame(0, 14), "Produce version 14"),
        (_frame(1, 19), "Fetch version 19"),
        (_frame(3, 9, b"\x00\xff\xff\xff\xff\xff\xff"), "cannot be read"),
        (_frame(1, 4, bytes(3)), "cannot be read"),
        (struct.pack(">i", 3) + b"abc", "less than any request has"),
        (struct.pack(">i", 10) + struct.pack(">hhih", 3, 1, 5, 9000), "header"),
        (_frame(REPLICA_FETCH, 0), "Api 10010, which is not supported"),
    ],
)
async def test_unsupported_request_ends_the_connection_with_one_log_line(
    broker: ApiBroker, frame: bytes, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    # The request behind the faulty one is not served.
    assert await _raw(broker, frame, _frame(18, 0)) == [b"closed"]
    lines = [r.getMessage() for r in caplog.records if "closed" in r.getMessage()]
    assert len(lines) == 1
    assert expected in lines[0]
    # Other connections are not affected.
    (answer,) = await _raw(broker, _frame(18, 0))
    assert decode_response(AnswerV0, answer)[1].error_code is ErrorCode.none


async def test_answers_of_one_connection_come_in_order(broker: ApiBroker) -> None:
    """A waiting Fetch delays the ApiVersions behind it, and no other connection's."""
    await broker.create("t")
    waiting = asyncio.create_task(
        broker.ask(kafka.fetch(4, "t", 0, wait_ms=200), kafka.answer_type(1, 4))
    )
    await asyncio.sleep(0)
    behind = asyncio.create_task(broker.ask(kafka.request(18, 0), kafka.answer_type(18, 0)))
    (other,) = await _raw(broker, _frame(18, 0))
    assert decode_response(AnswerV0, other)[1].error_code is ErrorCode.none
    assert not behind.done()
    await behind
    assert waiting.done()
