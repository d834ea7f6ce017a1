"""The broker's configuration file."""

import json
from pathlib import Path

import pytest

from tests.certificates import folder_of
from tidemark.tls.identity import TlsIdentity
from tidemark.wire.control import Endpoint
from tidemark_broker.config import load, parse
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.listeners import (
    CLIENTS,
    REPLICATION,
    ClientAuth,
    ListenerAddress,
    SecurityProtocol,
    address_of,
)

ENTRIES = {
    "node.id": "1",
    "cluster.id": "c",
    "log.dir": "/data",
    "listeners": "127.0.0.1:0",
    "controller.addresses": "127.0.0.1:9000,localhost:9001",
    "tidemark.tls.directory": "/tls",
}
MAP = {"listeners": "A://a:1"}
MECHANISMS = "sasl.enabled.mechanisms"
TLS = {
    "listeners": "SASL_SSL://a:1",
    "listener.name.sasl_ssl.tidemark.tls.directory": "/sasl",
}


def test_json_and_properties_are_equivalent(tmp_path: Path) -> None:
    as_json = tmp_path / "a.json"
    as_json.write_text(json.dumps(ENTRIES | {"node.id": 1, "rack": "r1"}))
    as_lines = tmp_path / "a.properties"
    as_lines.write_text(
        "# a comment\n"
        + "\n".join(f"{key} = {value}" for key, value in ENTRIES.items())
        + "\nrack=r1"
    )
    # Neither comments nor spaces around the equals sign matter.
    assert load(as_json, {}) == load(as_lines, {})
    config = load(as_json, {})
    assert (config.node_id, config.rack, config.log_dir) == (1, "r1", Path("/data"))
    assert config.controllers == (
        ListenerAddress("127.0.0.1", 9000),
        ListenerAddress("localhost", 9001),
    )
    assert config.advertised_endpoint(CLIENTS, 4711).port == 4711
    assert config.advertised_endpoint(REPLICATION, 4712) == Endpoint(
        name="REPLICATION", host="127.0.0.1", port=4712
    )
    assert config.replicates_encrypted


@pytest.mark.parametrize("code", [0x0B, 0x0C, 0x1C, 0x1E, 0x85, 0x2028, 0x2029], ids=hex)
def test_only_a_newline_starts_another_entry(tmp_path: Path, code: int) -> None:
    """Admission forbids newlines in a pod's configuration. Python splits at these as well."""
    path = tmp_path / "a.properties"
    lines = [f"{key}={value}" for key, value in ENTRIES.items()]
    path.write_text("\n".join([*lines, f"num.io.threads=8{chr(code)}cluster.id=another"]))
    assert load(path, {}).cluster_id == ENTRIES["cluster.id"]


def test_replication_may_have_its_own_listener() -> None:
    listeners = "PLAINTEXT://0.0.0.0:9092, REPLICATION://10.0.0.1:9093"
    advertised = "REPLICATION://b1.local:9093"
    config = parse(ENTRIES | {"listeners": listeners, "advertised.listeners": advertised})
    assert config.listeners == {
        CLIENTS: ListenerAddress("0.0.0.0", 9092),
        REPLICATION: ListenerAddress("10.0.0.1", 9093),
    }
    assert config.advertised_endpoint(REPLICATION, 0).host == "b1.local"
    assert config.advertised_endpoint(CLIENTS, 0).host == "0.0.0.0"


def test_listeners_have_names_and_protocols() -> None:
    config = parse(
        ENTRIES
        | {
            "listeners": "INSIDE://10.0.0.1:9092, outside://0.0.0.0:9093",
            "advertised.listeners": "OUTSIDE://b1.example:443",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT, OUTSIDE:SASL_SSL",
            "listener.name.outside.tidemark.tls.directory": "/outside",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "ssl.client.auth": "required",
        }
    )
    inside, outside = config.clients
    assert (inside.name, inside.protocol) == ("INSIDE", SecurityProtocol.PLAINTEXT)
    assert not inside.authenticates
    assert (outside.name, outside.protocol) == ("OUTSIDE", SecurityProtocol.SASL_SSL)
    assert outside.authenticates
    assert outside.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert (outside.tls_directory, outside.client_auth) == (Path("/outside"), ClientAuth.REQUIRED)
    # An advertised name replaces the address, the internal listener gets a free port.
    assert config.advertised_endpoint("OUTSIDE", 9093).host == "b1.example"
    assert config.listeners[REPLICATION] == ListenerAddress("10.0.0.1", 0)


def test_unencrypted_secrets_need_an_explicit_setting() -> None:
    clear = {"listeners": "SASL_PLAINTEXT://a:1", MECHANISMS: "PLAIN"}
    # Without this setting, PLAIN over an unencrypted connection is refused.
    config = parse(ENTRIES | clear | {"tidemark.sasl.unencrypted.secrets": "true"})
    assert config.clients[0].mechanisms == ("PLAIN",)


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ENTRIES))
    assert load(path, {"TIDEMARK_NODE_ID": "7"}).node_id == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node.id": ""}, "lacks required keys: node.id"),
        ({"node.id": "-3"}, "node.id=-3 must be at least 0"),
        ({"node.id": "one"}, "node.id='one' is not a whole number"),
        ({"listeners": "localhost"}, "write host:port"),
        ({"listeners": "SSL://localhost:1"}, "listener.name.ssl.tidemark.tls.directory"),
        ({"listeners": "OTHER://localhost:1"}, "OTHER has no protocol; add OTHER:SASL_SSL"),
        ({"listeners": "no name://localhost:1"}, "'no name' is not a valid listener name"),
        ({"listeners": "a:1,b:2"}, "two listeners have the name PLAINTEXT"),
        ({"listeners": "REPLICATION://a:1"}, "no listener is for clients"),
        ({"advertised.listeners": "SSL://a:1"}, "SSL is not in listeners"),
        (MAP | {"listener.security.protocol.map": "A:TLS"}, "'TLS' is not one of PLAINTEXT, SSL"),
        (
            MAP | {"listener.security.protocol.map": "REPLICATION:SSL"},
            "REPLICATION is for brokers",
        ),
        ({"listeners": "SASL_PLAINTEXT://a:1", MECHANISMS: "PLAIN"}, "send secrets in clear text"),
        ({"listeners": "SASL_PLAINTEXT://a:1", MECHANISMS: "GSSAPI"}, "supported are PLAIN, SCRAM"),
        (TLS | {MECHANISMS: "OAUTHBEARER"}, "lacks .*jwks.endpoint.url"),
        (TLS | {"ssl.client.auth": "maybe"}, "'maybe' of SASL_SSL is not one of none, requested"),
        ({"tidemark.tls.directory": ""}, "lacks required keys: tidemark.tls.directory"),
        ({"controller.addresses": "a:1,b"}, "controller.addresses='b': write host:port"),
    ],
)
def test_invalid_config_is_refused_by_key(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ENTRIES | change)


def test_ipv6_address_needs_brackets() -> None:
    address = address_of("listeners", "[::1]:9092")
    assert address == ListenerAddress("::1", 9092)
    assert str(address) == "[::1]:9092"


def test_an_error_of_a_broken_file_names_the_position(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("node.id=1\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2: write key=value"):
        load(path, {})


def unnamed(folder: Path) -> Path:
    """Write a configuration without cluster.id whose certificates are in ``folder``."""
    entries = ENTRIES | {"tidemark.tls.directory": str(folder)}
    del entries["cluster.id"]
    path = folder.parent / "broker.json"
    path.write_text(json.dumps(entries))
    return path


def test_the_cluster_of_the_certificate_is_the_default(
    tmp_path: Path,
) -> None:
    folder = folder_of(TlsIdentity("theirs", 1), tmp_path / "tls")
    assert load(unnamed(folder), {}).cluster_id == "theirs"
    assert load(unnamed(folder), {"TIDEMARK_CLUSTER_ID": "given"}).cluster_id == "given"


def test_foreign_certificate_does_not_name_the_cluster(tmp_path: Path) -> None:
    for identity, expected in (
        (TlsIdentity("c", 2), "of broker 2 of"),
        (TlsIdentity("c"), "of a controller of"),
    ):
        folder = folder_of(identity, tmp_path / "tls")
        with pytest.raises(
            ConfigError, match=f"cluster.id is not set.*{expected}.*not of broker 1"
        ):
            load(unnamed(folder), {})
    # An empty folder has no certificate to read the cluster from.
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"cluster.id is not set.*tls\.crt does not contain it"):
        load(unnamed(tmp_path / "none"), {})
