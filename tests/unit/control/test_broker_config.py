"""The broker's configuration file."""

import json
from pathlib import Path

import pytest

from tidemark_broker.config import Address, ConfigError, address_of, load, parse

ENTRIES = {
    "node.id": "1",
    "cluster.id": "c",
    "log.dir": "/data",
    "listeners": "127.0.0.1:0",
    "controller.addresses": "127.0.0.1:9000,localhost:9001",
}


def test_json_and_properties_mean_the_same(tmp_path: Path) -> None:
    as_json = tmp_path / "a.json"
    as_json.write_text(json.dumps(ENTRIES | {"node.id": 1, "rack": "r1"}))
    as_lines = tmp_path / "a.properties"
    as_lines.write_text(
        "# a comment\n"
        + "\n".join(f"{key} = {value}" for key, value in ENTRIES.items())
        + "\nrack=r1"
    )
    assert load(as_json, {}) == load(as_lines, {})
    config = load(as_json, {})
    assert (config.node_id, config.rack, config.log_dir) == (1, "r1", Path("/data"))
    assert config.controllers == (Address("127.0.0.1", 9000), Address("localhost", 9001))
    assert config.advertised_endpoint(4711).port == 4711


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ENTRIES))
    assert load(path, {"TIDEMARK_NODE_ID": "7"}).node_id == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node.id": ""}, "missing in the configuration: node.id"),
        ({"node.id": "-3"}, "node.id=-3 must be at least 0"),
        ({"node.id": "one"}, "node.id='one' is not a whole number"),
        ({"listeners": "localhost"}, "write host:port"),
        ({"listeners": "SSL://localhost:1"}, "only PLAINTEXT"),
        ({"listeners": "a:1,b:2"}, "one listener"),
        ({"controller.addresses": "a:1,b"}, "controller.addresses='b': write host:port"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ENTRIES | change)


def test_ipv6_addresses_stand_in_brackets() -> None:
    address = address_of("listeners", "PLAINTEXT://[::1]:9092")
    assert address == Address("::1", 9092)
    assert str(address) == "[::1]:9092"


def test_a_broken_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "a.properties"
    path.write_text("node.id=1\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2: write key=value"):
        load(path, {})
