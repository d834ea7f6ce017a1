"""How ``tidemark top`` proves who asks: its half of SCRAM against the broker's, and the file."""

import pytest

from tests.user_states import credential
from tidemark_broker.security.errors import AuthenticationFailed
from tidemark_broker.security.scram import NUMBERS, Credential, ScramServer
from tidemark_cli.top.login import BadLogin, Login, properties
from tidemark_cli.top.scram_client import ScramClient, ScramRefused

PASSWORD = "correct horse, battery=staple"
NAME = "o'neil, a=b"


def server(mechanism: str, password: str = PASSWORD) -> ScramServer:
    """Of a broker that knows one user."""
    made = credential(password, NUMBERS[mechanism])
    known = Credential(
        mechanism=made.mechanism,
        iterations=made.iterations,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
    )
    return ScramServer(lambda name: known)


@pytest.mark.parametrize("mechanism", sorted(NUMBERS))
def test_both_sides_of_scram_agree(mechanism: str) -> None:
    broker, client = server(mechanism), ScramClient(mechanism, NAME, PASSWORD, "nonce")
    client.check(broker.final(client.final(broker.first(client.first()))))
    assert broker.name == NAME


def test_a_wrong_password_is_refused_by_the_broker() -> None:
    broker, client = server("SCRAM-SHA-256"), ScramClient("SCRAM-SHA-256", NAME, "no", "nonce")
    challenge = broker.first(client.first())
    with pytest.raises(AuthenticationFailed):
        broker.final(client.final(challenge))


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    broker, client = server("SCRAM-SHA-256"), ScramClient("SCRAM-SHA-256", NAME, PASSWORD, "nonce")
    client.final(broker.first(client.first()))
    with pytest.raises(ScramRefused, match="somebody else"):
        client.check(b"v=AAAA")


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=other,s=AAAA,i=4096", b"r=nonce1,s=?,i=4096", b"r=nonce1,s=AAAA,i=999999999"],
    ids=["nothing", "another nonce", "no salt", "too many iterations"],
)
def test_what_is_no_scram_is_refused(challenge: bytes) -> None:
    with pytest.raises(ScramRefused):
        ScramClient("SCRAM-SHA-256", NAME, PASSWORD, "nonce").final(challenge)


def test_a_file_of_a_client_is_read() -> None:
    text = """
    # as a client has it
    bootstrap.servers = broker:9093
    security.protocol=sasl_plaintext
    sasl.mechanism=scram-sha-512
    sasl.username=ann
    sasl.password=a=b
    """
    login = Login.of(properties(text))
    assert (login.tls, login.mechanism, login.name) == (None, "SCRAM-SHA-512", "ann")
    assert login.password == "a=b"
    assert "a=b" not in repr(login)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("security.protocol=TLS", "one of PLAINTEXT, SSL"),
        ("sasl.jaas.config=x", "sasl.jaas.config is not known"),
        ("security.protocol=SASL_PLAINTEXT", "one of PLAIN, SCRAM"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "sasl.username is missing"),
        ("security.protocol=SSL\nssl.ca.location=/none", "cannot be read"),
    ],
    ids=["protocol", "unknown", "mechanism", "user", "certificates"],
)
def test_what_cannot_be_used_is_said(text: str, said: str) -> None:
    with pytest.raises(BadLogin, match=said):
        Login.of(properties(text))
