"""Configuration of the nodes of a local Apache Kafka, and the settings read back from it."""

import itertools
import re
import uuid
from pathlib import Path

import pytest

from tidemark_devcluster.kafka_nodes import KafkaNodes, name_of, new_id, own_meta
from tidemark_devcluster.kafka_properties import (
    FIRST_CONTROLLER,
    BrokerPorts,
    Plan,
    broker_entries,
    client_address,
    controller_entries,
    properties_text,
    protocol_map,
)
from tidemark_devcluster.layout import Layout, LayoutError

PORTS = BrokerPorts(clients=9092, replication=9093)


def plan(**changed: object) -> Plan:
    return Plan(**{"cluster_id": "x", "voters": {1: 9090}, "replicas": 3, **changed})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return different ports each time, without checking whether they are free."""
    numbers = itertools.count(10_000)
    monkeypatch.setattr(
        "tidemark_devcluster.kafka_nodes.free_ports",
        lambda count: [next(numbers) for _ in range(count)],
    )


def nodes(folder: Path, controllers: int = 0) -> KafkaNodes:
    layout = Layout(folder)
    layout.create()
    made = KafkaNodes(layout)
    made.create(controllers=controllers, replicas=1)
    return made


def test_first_broker_is_the_controller_without_dedicated_ones() -> None:
    first = broker_entries(plan(), 1, "/logs", PORTS)
    other = broker_entries(plan(), 2, "/logs", PORTS)
    assert (first["process.roles"], other["process.roles"]) == ("broker,controller", "broker")
    assert "CONTROLLER://127.0.0.1:9090" in first["listeners"]
    assert "CONTROLLER" not in other["listeners"]


def test_dedicated_controllers_are_the_voters() -> None:
    three = plan(voters={1000: 1, 1001: 2, 1002: 3})
    controller = controller_entries(three, 1001, "/logs")
    assert controller["process.roles"] == "controller"
    assert controller["controller.quorum.voters"] == (
        "1000@127.0.0.1:1,1001@127.0.0.1:2,1002@127.0.0.1:3"
    )
    assert broker_entries(three, 1, "/logs", PORTS)["process.roles"] == "broker"


def test_controllers_know_of_the_remote_storage_too() -> None:
    tiered = plan(tier="/tier", voters={1000: 1})
    switch = "remote.log.storage.system.enable"
    assert controller_entries(tiered, 1000, "/logs")[switch] == "true"
    broker = broker_entries(tiered, 1, "/logs", PORTS)
    assert (broker[switch], broker["rsm.config.dir"]) == ("true", "/tier")
    assert switch not in broker_entries(plan(), 1, "/logs", PORTS)


def test_explicit_settings_override_defaults() -> None:
    entries = broker_entries(plan(entries={"log.dirs": "/mine"}), 1, "/logs", PORTS)
    assert entries["log.dirs"] == "/mine"


def test_clients_receive_another_address_if_configured() -> None:
    ports = BrokerPorts(clients=1, replication=2, advertised="localhost:19092", rack="a")
    entries = broker_entries(plan(), 1, "/logs", ports)
    assert entries["advertised.listeners"] == (
        "CLIENTS://localhost:19092,REPLICATION://127.0.0.1:2"
    )
    assert client_address(entries) == (1, True)
    assert entries["broker.rack"] == "a"


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_listener_with_authentication_is_recognized(protocol: str) -> None:
    secured = plan(entries={"listener.security.protocol.map": protocol_map(clients=protocol)})
    assert client_address(broker_entries(secured, 1, "/logs", PORTS)) == (9092, False)


def test_paths_are_escaped_for_javas_properties() -> None:
    # In a properties file a backslash is an escape, and other characters are Latin-1.
    text = properties_text({"log.dirs": "C:\\é\U0001f600", "a": "b=c"})
    assert text == "log.dirs=C:\\\\\\u00e9\\ud83d\\ude00\na=b=c\n"


def test_a_copy_of_a_log_directory_has_ids_of_its_own() -> None:
    meta = "#Wed Nov 25\ncluster.id=c\ndirectory.id=one\nnode.id=1\nversion=1\n"
    first, second = own_meta(meta, 7), own_meta(meta, 8)
    assert "node.id=7\n" in first
    assert "cluster.id=c\n" in first
    (first_id,) = re.findall("directory.id=(.+)", first)
    (second_id,) = re.findall("directory.id=(.+)", second)
    assert len({first_id, second_id, "one"}) == 3


def test_no_id_starts_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first two start with a dash in Base64, which Kafka's tools read as an option.
    values = iter([bytes([0xF8] * 16), bytes([0xFB] * 16), bytes(16)])
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=next(values)))
    assert new_id() == "A" * 22


def test_ports_stay_with_the_folder(tmp_path: Path) -> None:
    made = nodes(tmp_path)
    made.declare_broker(1)
    made.declare_broker(2)
    before = made.bootstrap
    # A broker that is declared again keeps its ports.
    made.declare_broker(1)
    assert KafkaNodes(made.layout).bootstrap == before
    assert made.broker_ids() == [1, 2]


def test_controllers_are_no_brokers(tmp_path: Path) -> None:
    made = nodes(tmp_path, controllers=3)
    made.declare_broker(1)
    assert made.broker_ids() == [1]
    assert made.controller_ids() == [FIRST_CONTROLLER + number for number in range(3)]
    assert name_of(made.controller_ids()[0]) == f"controller-{FIRST_CONTROLLER}"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"voters": {"a": 1}}', '{"voters": {}, "cluster_id": 1, "more": 2}']
)
def test_unknown_cluster_file_is_named(tmp_path: Path, text: str) -> None:
    made = nodes(tmp_path)
    (tmp_path / "kafka" / "cluster.json").write_text(text, encoding="utf-8")
    with pytest.raises(LayoutError, match=r"cluster\.json .*remove"):
        made.plan()
