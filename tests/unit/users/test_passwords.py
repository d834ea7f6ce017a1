"""Passwords: generated, read from another Secret, and written into the user's own."""

import base64
import re
from typing import Any

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tidemark_operator.certificates.certificate_stores import CERTIFICATES
from tidemark_operator.kube.kinds import SECRET
from tidemark_operator.resources.names import OFFERED_ANNOTATION
from tidemark_operator.users.user_secret import (
    USER_SECRETS,
    BadPassword,
    StoredPassword,
    jaas,
    make_password,
    offered_password,
    password_data,
    read_password,
)

OFFERED = {OFFERED_ANNOTATION: "User"}
SECRET_TEXT = "hunter2-not-to-be-shown"


async def read(data: dict[str, bytes], key: str = "password", **body: Any) -> str:
    server = FakeApiServer()
    meta = {"name": "keys", "annotations": OFFERED, **body.pop("metadata", {})}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    server.create("user", SECRET, "ns", {"metadata": meta, "data": encoded, **body})
    return await offered_password(FakeKubeApi(server), "ns", "keys", key)  # type: ignore[arg-type]


def test_a_password_is_long_and_never_the_same() -> None:
    made = {make_password() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch("[A-Za-z0-9]{32}", item) for item in made)


@pytest.mark.parametrize("type_", ["Opaque", "kubernetes.io/basic-auth"])
async def test_a_password_is_read_from_a_secret_that_people_write(type_: str) -> None:
    assert await read({"password": "Grüße".encode()}, type=type_) == "Grüße"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "has no key password. Add it"),
        ({"password": b""}, "has 0 bytes"),
        ({"password": SECRET_TEXT.encode() * 100}, "a password has 1 to 1024"),
        ({"password": f"{SECRET_TEXT}\n".encode()}, "contains a line break"),
        ({"password": f"{SECRET_TEXT}\0".encode()}, "another control character"),
        ({"password": SECRET_TEXT.encode() + b"\xff"}, "is not UTF-8 text"),
    ],
)
async def test_invalid_password_is_refused_and_not_shown(
    data: dict[str, bytes], message: str
) -> None:
    with pytest.raises(BadPassword, match=message) as refused:
        await read(data)
    shown = repr(refused.value) + repr(refused.value.__cause__)
    assert SECRET_TEXT not in shown


async def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(BadPassword, match="Secret keys does not exist or is not offered to User"):
        await offered_password(FakeKubeApi(FakeApiServer()), "ns", "keys", "p")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels", [CERTIFICATES.labels, USER_SECRETS.labels], ids=["authority", "user"]
)
async def test_the_operators_own_secrets_are_no_passwords(labels: dict[str, str]) -> None:
    """Otherwise a writer of Users could have an authority's key copied."""
    with pytest.raises(BadPassword, match="belongs to the operator"):
        await read({"password": b"x"}, metadata={"labels": labels})


@pytest.mark.parametrize("type_", ["kubernetes.io/service-account-token", "kubernetes.io/tls"])
async def test_credentials_that_others_fill_in_are_no_passwords(type_: str) -> None:
    with pytest.raises(BadPassword, match=f"has type {type_}"):
        await read({"token": b"x"}, key="token", type=type_)


# ---------------------------------------------------------------- the user's own Secret


def test_stored_password_is_read_back_and_never_shown() -> None:
    kept = StoredPassword(SECRET_TEXT, bytes(32))
    assert read_password(password_data("alice", kept)) == kept
    assert SECRET_TEXT not in repr(kept)


def test_a_password_is_kept_whatever_else_is_missing() -> None:
    data = password_data("alice", StoredPassword("pencil", bytes(32)))
    # A salt key that is missing or too short is replaced.
    for salt in (b"", b"short"):
        kept = read_password({**data, "salt.key": salt})
        assert kept is not None
        assert (kept.password, len(kept.salt_key)) == ("pencil", 32)
    assert read_password({**data, "password": b""}) is None
    assert read_password({}) is None
    with pytest.raises(BadPassword, match="contains a line break"):
        read_password({"password": b"pencil\n"})


def test_a_java_client_can_paste_its_configuration() -> None:
    data = password_data("alice", StoredPassword("pencil", bytes(32)))
    assert data["username"] == b"alice"
    assert data["sasl.jaas.config"] == (
        b"org.apache.kafka.common.security.scram.ScramLoginModule required "
        b'username="alice" password="pencil";'
    )
    assert jaas("alice", 'a"b\\c').endswith(r'password="a\"b\\c";')
