"""Invalid frames: unknown Apis and versions, and headers that are truncated or too long; and
unknown tagged fields, which are skipped (KIP-482).
"""

import struct
from collections.abc import Iterator, Mapping

from tests.conformance.oracle import entities
from tests.conformance.oracle.case import CLIENT_ID, CORRELATION_ID, OracleCase, sized
from tests.conformance.oracle.entities import Here
from tests.conformance.oracle.sides import SideWorld
from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import encode_request

_METADATA_FLEXIBLE = 9


def _frame(key: int, version: int, rest: bytes) -> bytes:
    made = struct.pack(">hhi", key, version, CORRELATION_ID) + rest
    return struct.pack(">i", len(made)) + made


def _string(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def _strange(newest: int) -> Mapping[str, tuple[int, int, bytes]]:
    """Name -> (Api, version in which the answer would be, frame)."""
    key, client = kafka.METADATA, _string(CLIENT_ID.encode())
    every = b"\x00\x00\x00\x00"
    # The body of a good request follows the 15 bytes of length, header and client id.
    body = encode_request(entities.request(key, newest, {}, Here(SideWorld(), "")), 7, "")[15:]
    # The second element is the version of the answer's header, which decides how it is decoded.
    return {
        "an Api that is none": (key, 0, _frame(999, 0, client)),
        "an Api below zero": (key, 0, _frame(-1, 0, client)),
        "a version too new": (key, 0, _frame(key, newest + 1, client)),
        "a version below zero": (key, 0, _frame(key, -1, client)),
        "no client id": (key, 0, _frame(key, 0, b"\xff\xff" + every)),
        "an empty client id": (key, 0, _frame(key, 0, b"\x00\x00" + every)),
        "a client id that is no text": (key, 0, _frame(key, 0, _string(b"\xff\xfe") + every)),
        "a client id beyond the end": (key, 0, _frame(key, 0, b"\x75\x30x")),
        "a client id below null": (key, 0, _frame(key, 0, b"\xff\x00" + every)),
        "a header that is cut": (key, 0, sized(b"\x00" * 4 + struct.pack(">hhi", 3, 0, 7)[:6])),
        "nothing": (key, 0, bytes(4)),
        "a length below zero": (key, 0, b"\xff\xff\xff\xff"),
        "a length beyond all": (key, 0, b"\x7f\xff\xff\xff" + bytes(20)),
        "plain text": (key, 0, b"GET / HTTP/1.1\r\n\r\n"),
        "an unknown tag in the header": (
            key, newest, _frame(key, newest, client + b"\x01\x63\x02hi" + body)
        ),
        "an unknown tag in the body": (
            key, newest, _frame(key, newest, client + b"\x00" + body[:-1] + b"\x01\x63\x02hi")
        ),
        "a tag beyond the end": (
            key, newest, _frame(key, newest, client + b"\x00" + body[:-1] + b"\x01\x63\x70hi")
        ),
        "a version of ApiVersions too new": (18, 0, _frame(18, 99, client + b"\x00")),
    }  # fmt: skip


def frame_cases(served: Mapping[int, range]) -> Iterator[OracleCase]:
    """Frames for which both sides serve flexible versions of Metadata."""
    versions = served.get(kafka.METADATA)
    if versions and versions[-1] >= _METADATA_FLEXIBLE:
        for what, (key, version, frame) in _strange(versions[-1]).items():
            yield OracleCase(f"Frame {what}", key, version, lambda _, made=frame: made)
