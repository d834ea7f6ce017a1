"""Authentication of a job: options, and the client's side of SCRAM."""

import pytest

from tests.user_states import credential
from tidemark.kafka_client.access import Login, Tls
from tidemark.kafka_client.sasl import LoginFailed, ScramClient
from tidemark_broker.security.scram import Credential, ScramServer
from tidemark_pipeline.read.options import OptionError, parse

BASE = {"topic": "t", "path": "/tier", "bootstrap": "b1:9092, b2:9092"}
LOGIN = {"kafka.sasl.username": "ann", "kafka.sasl.password": "secret"}
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


def test_option_names_match_kafka() -> None:
    access = parse(
        {
            "topic": "t",
            "path": "/tier",
            "kafka.bootstrap.servers": "b1:9092",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": "/ca.pem",
            **LOGIN,
        }
    ).access
    assert access is not None
    assert (access.bootstrap, access.tls) == (("b1:9092",), Tls("/ca.pem"))
    assert access.login == Login("SCRAM-SHA-512", "ann", "secret")
    assert "secret" not in repr(access)


def test_a_password_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        **BASE, "kafka.security.protocol": "sasl_plaintext", "kafka.sasl.username": "ann"
    }  # fmt: skip
    monkeypatch.delenv("TIDEMARK_SASL_PASSWORD", raising=False)
    with pytest.raises(OptionError, match="TIDEMARK_SASL_PASSWORD"):
        parse(options)
    monkeypatch.setenv("TIDEMARK_SASL_PASSWORD", "secret")
    access = parse(options).access
    assert access is not None
    assert access.login is not None
    assert access.login.password == "secret"
    assert access.bootstrap == ("b1:9092", "b2:9092")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kafka.security.protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "PLAIN, SCRAM"),
        ({"bootstrap": "b1"}, "the broker 'b1' is no host:port"),
        ({"kafka.sasl.jaas.config": "x"}, "unknown option"),
    ],
    ids=["protocol", "mechanism", "address", "unknown"],
)
def test_bad_options_name_the_remedy(changes: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(BASE | LOGIN | changes)


def server(login: Login, password: str) -> ScramServer:
    stored = credential(password, NUMBERS[login.mechanism])
    known = Credential(
        mechanism=stored.mechanism,
        iterations=stored.iterations,
        salt=stored.salt,
        stored_key=stored.stored_key,
        server_key=stored.server_key,
    )
    return ScramServer(lambda _: known)


@pytest.mark.parametrize("mechanism", NUMBERS)
def test_scram_proves_both_sides(mechanism: str) -> None:
    login = Login(mechanism, "a=b,c", "p,=ässword")
    client, broker = ScramClient(login, "nonce"), server(login, login.password)
    verdict = broker.final(client.final(broker.first(client.first())))
    client.check(verdict)
    assert broker.name == login.name
    with pytest.raises(LoginFailed, match="does not prove"):
        client.check(b"v=AAAA")


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=other,s=AAAA,i=4096", b"r=nonce,s=*,i=1", b"r=nonce,s=AAAA,i=0", b"\xff"],
)
def test_malformed_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(LoginFailed, match="challenge"):
        ScramClient(Login("SCRAM-SHA-256", "a", "p"), "nonce").final(challenge)
