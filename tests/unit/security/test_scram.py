"""Server side of SCRAM: the example of RFC 7677, and exchanges that must fail."""

import base64
import hashlib
import hmac
import re

import pytest

from tests import user_states
from tidemark_broker.security import scram
from tidemark_broker.security.errors import AuthenticationFailed
from tidemark_broker.security.scram import Credential, ScramServer

PASSWORD = "pencil"
NONCE = "rOprNGfwEbeRWgbNEkqO"


def credential(password: str = PASSWORD, mechanism: int = 1) -> Credential:
    made = user_states.credential(password, mechanism)
    return Credential(
        mechanism=mechanism,
        iterations=made.iterations,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
    )


def of_rfc_7677() -> Credential:
    # Salt and iterations of the example in section 3 of RFC 7677.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return Credential(
        mechanism=1,
        iterations=4096,
        salt=salt,
        stored_key=hashlib.sha256(client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", "sha256"),
    )


def final(server_first: bytes, *, password: str = PASSWORD, bare: str = f"n=user,r={NONCE}") -> str:
    """Return the client's last message according to RFC 5802."""
    challenge = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", server_first.decode())
    assert challenge is not None
    salt = base64.b64decode(challenge[2])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, int(challenge[3]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    # biws is the base64 of "n,,": no channel binding.
    unproven = f"c=biws,r={challenge[1]}"
    signed = f"{bare},{server_first.decode()},{unproven}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproven},p={base64.b64encode(proof).decode()}"


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    # The nonce and the salt of the example make every message predictable.
    own = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    monkeypatch.setattr(scram.secrets, "token_urlsafe", lambda _: own)
    server = ScramServer(lambda _: of_rfc_7677())
    first = server.first(f"n,,n=user,r={NONCE}".encode())
    assert first.decode() == f"r={NONCE}{own},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    answer = server.final(f"c=biws,r={NONCE}{own},p={proof}".encode())
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.name == "user"


def test_a_wrong_password_fails() -> None:
    server = ScramServer(lambda _: credential())
    first = server.first(f"n,,n=user,r={NONCE}".encode())
    with pytest.raises(AuthenticationFailed, match="unknown user or wrong password"):
        server.final(final(first, password="pen").encode())


def test_a_proof_is_valid_for_one_exchange_only() -> None:
    known = credential()
    server, second = ScramServer(lambda _: known), ScramServer(lambda _: known)
    proof = final(server.first(f"n,,n=user,r={NONCE}".encode()))
    second.first(f"n,,n=user,r={NONCE}".encode())
    with pytest.raises(AuthenticationFailed, match="to another exchange"):
        second.final(proof.encode())
    server.final(proof.encode())


def test_names_may_have_commas_and_equals_signs() -> None:
    names = []
    server = ScramServer(lambda name: names.append(name) or credential())  # type: ignore[func-returns-value]
    bare = f"n=a=2Cb=3Dc,r={NONCE}"
    server.final(final(server.first(f"n,,{bare}".encode()), bare=bare).encode())
    assert names == ["a,b=c"]


def test_an_authorization_id_must_be_the_users_own() -> None:
    # Acting for another user is not supported, as in Kafka.
    ScramServer(lambda _: credential()).first(b"n,a=user,n=user,r=x")
    with pytest.raises(AuthenticationFailed, match="for another user"):
        ScramServer(lambda _: credential()).first(b"n,a=root,n=user,r=x")


def test_extensions_are_ignored() -> None:
    bare = f"n=user,r={NONCE},tokenauth=true"
    server = ScramServer(lambda _: credential())
    server.final(final(server.first(f"n,,{bare}".encode()), bare=bare).encode())


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"p=tls-unique,,n=a,r=b", b"n,,n=,r=b", b"n,,n=a", b"n,,n=a=2c,r=b", b"\xff",
     b"n,,m=x,n=a,r=b", b"n,,n=" + b"a" * 300 + b",r=b"],
)  # fmt: skip
def test_invalid_first_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramServer(lambda _: credential()).first(message)


@pytest.mark.parametrize("change", ["p=AAAA", "p=!", "c=eSws", "", "p="])
def test_invalid_final_messages_are_rejected(change: str) -> None:
    server = ScramServer(lambda _: credential())
    proof = final(server.first(f"n,,n=user,r={NONCE}".encode()))
    # Replace one attribute: a wrong or malformed proof, another channel binding, or none.
    parts = [part for part in proof.split(",") if part[:2] != change[:2]]
    with pytest.raises(AuthenticationFailed):
        server.final(",".join([change, *parts] if change[:1] == "c" else [*parts, change]).encode())


def test_keys_are_not_in_the_repr() -> None:
    known = credential()
    assert "stored_key" not in repr(known)
    assert "server_key" not in repr(known)
