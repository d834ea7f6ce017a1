"""Properties with which the command line connects to listeners with TLS or SASL."""

from pathlib import Path

import pytest

from tidemark.kafka_client.access import KafkaAccess, Login
from tidemark.kafka_client.security_options import SecurityError
from tidemark_cli.kafka_access import BadProperties, access_of, properties, read_access


def test_a_file_of_a_client_is_read(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        """
        # as a client has it
        bootstrap.servers = broker:9093
        security.protocol=sasl_plaintext
        sasl.mechanism=scram-sha-512
        sasl.username=ann
        sasl.password=a=b
        """,
        encoding="utf-8",
    )
    access = read_access(file, "b1:9092, b2:9092")
    assert access == KafkaAccess(("b1:9092", "b2:9092"), login=Login("SCRAM-SHA-512", "ann", "a=b"))
    assert "a=b" not in repr(access)


def test_without_a_file_access_needs_no_credentials() -> None:
    assert read_access(None, "b:1") == KafkaAccess(("b:1",))


@pytest.mark.parametrize(
    ("line", "checks"),
    [("", True), ("https", True), ("none", False)],
    ids=["unset", "https", "none"],
)
def test_hostnames_are_verified_unless_disabled(line: str, checks: bool) -> None:
    name = "ssl.endpoint.identification.algorithm"
    found = {"security.protocol": "SSL", **({name: line} if line else {})}
    access = access_of(found)
    assert access.tls is not None
    assert access.tls.context().check_hostname is checks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("security.protocol=TLS", "PLAINTEXT, SSL"),
        ("sasl.jaas.config=x", "unknown property sasl.jaas.config"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI", "PLAIN, SCRAM"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", "needs sasl.username and sasl.passw"),
        ("security.protocol=SSL\nssl.ca.location=/none", "cannot be read"),
    ],
    ids=["protocol", "unknown", "mechanism", "user", "certificates"],
)
def test_unusable_properties_name_the_cause(text: str, message: str) -> None:
    with pytest.raises((BadProperties, SecurityError), match=message):
        access_of(properties(text))


def test_messages_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadProperties, match="none: the file cannot be read"):
        read_access(tmp_path / "none", "b:1")
    with pytest.raises(BadProperties, match="'nowhere' is no host:port"):
        read_access(None, "nowhere")
