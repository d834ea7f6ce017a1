"""Client messages of the SASL mechanisms PLAIN and OAUTHBEARER."""

import pytest

from tidemark_broker.security import sasl
from tidemark_broker.security.errors import AuthenticationFailed


def test_a_plain_message_has_a_name_and_a_password() -> None:
    message = sasl.plain_message("\0ünï\0pässword".encode())
    assert (message.name, message.password) == ("ünï", "pässword")
    assert sasl.plain_message(b"ann\0ann\0x").name == "ann"
    assert "pässword" not in repr(message)


@pytest.mark.parametrize(
    "message",
    [b"", b"\0ann", b"\0ann\0", b"\0\0x", b"root\0ann\0x", b"\0ann\0x\0y", b"\0\xff\0x"],
)
def test_invalid_plain_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        sasl.plain_message(message)
    # The error must not repeat the password.
    assert "x" not in str(caught.value).split()


def test_a_bearer_message_has_a_token() -> None:
    message = sasl.bearer_message(b"n,a=ann,\x01auth=Bearer a.b-c_d\x01traceId=1\x01\x01")
    assert (message.token, message.authzid) == ("a.b-c_d", "ann")
    assert sasl.bearer_message(b"n,,\x01auth=bearer t==\x01\x01").token == "t=="
    assert "a.b-c_d" not in repr(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"p=x,,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer t u\x01\x01",
        b"\xff",
    ],
)
def test_invalid_bearer_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        sasl.bearer_message(message)
