"""External listeners on the real API server, which assigns node ports; the test itself assigns load
balancers and node addresses.

A real broker with two listeners returns to its clients the addresses of their own listener.
"""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.chart_pods import entries_of
from tests.integration.broker.kafka_clients import consume_async, produce_async
from tests.integration.operator import pods
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tests.unit.pods.pod_values import POD
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    CONFIG_MAP,
    SERVICE,
    STATEFUL_SET,
    TOPIC,
    Json,
)

NODES = {1: "10.0.0.1", 2: "10.0.0.2"}
KUBECTL_COLUMN = "External"


def listeners(type_: str = "NodePort", port: int = 9095, **fields: Any) -> list[Json]:
    """Return an internal listener and one that may be external."""
    external = {"external": {"type": type_} | fields} if type_ else {}
    return [*POD["listeners"], {"name": "OUT", "port": port, "protocol": "PLAINTEXT"} | external]


async def node_port(world: ClusterWorld, service: str) -> int:
    """Return the node port that the API server assigned."""
    await world.until(lambda: world.exists(SERVICE, service), f"Service {service}")
    return int((await world.get(SERVICE, service))["spec"]["ports"][0]["nodePort"])


async def start_peer(
    world: ClusterWorld, node: int, operator: OperatorProcess, address: str
) -> BrokerPeer:
    """Start a peer as in a pod on the node of that address."""
    return await world.start_peer(on_node(await world.peer(node), address), operator)


def on_node(peer: BrokerPeer, address: str) -> BrokerPeer:
    """Give the peer the address of its node, as the pod's environment variable does."""
    inside = peer.listeners[0]
    peer.listeners = (inside, dataclasses.replace(inside, name="OUT", host=address, port=9095))
    return peer


async def endpoints(world: ClusterWorld, node: int, *expected: tuple[str, int]) -> None:
    """Wait until a Broker's status has these external endpoints."""
    expected_endpoints = [{"name": "OUT", "host": host, "port": port} for host, port in expected]
    await world.status_where(
        BROKER,
        f"broker-{node}",
        lambda found: (found.get("externalEndpoints") or []) == expected_endpoints,
    )


async def bootstrap(world: ClusterWorld, expected: str) -> None:
    """Wait until the Cluster's status has these bootstrap addresses."""
    expected_endpoints = [{"name": "OUT", "bootstrapServers": expected}]
    await world.status_where(
        CLUSTER, "demo", lambda found: found.get("externalListeners") == expected_endpoints
    )


@pytest.mark.full
async def test_node_ports_are_advertised_with_the_node_of_each_pod(
    world: ClusterWorld,
) -> None:
    """A pod that returns on another node advertises that node, and no other broker restarts for
    it.
    """
    await world.create_cluster()
    operator = await pods.start_operator(world)
    for node in NODES:
        await pods.create_broker(world, node, listeners=listeners())
        await pods.run(world, node)
    # One Service with a node port for each broker, and one for bootstrapping.
    ports = {node: await node_port(world, f"broker-{node}-out") for node in NODES}
    assert len({*ports.values()}) == len(NODES)
    peers = {node: await start_peer(world, node, operator, NODES[node]) for node in NODES}
    for node, address in NODES.items():
        await endpoints(world, node, (address, ports[node]))
        await world.condition(BROKER, f"broker-{node}", "ExternalAddress", "True", "Advertised")
    first = await node_port(world, "demo-out-bootstrap")
    await bootstrap(world, ",".join(f"{address}:{first}" for address in NODES.values()))
    await world.condition(CLUSTER, "demo", "ExternalAddress", "True", "Advertised")
    # kubectl shows the first bootstrap address.
    assert (await columns(world))[KUBECTL_COLUMN].startswith("10.0.0.1:")

    def advertised() -> tuple[str, int]:
        (found,) = [
            listener for listener in peers[2].brokers[1].listeners if listener.name == "OUT"
        ]
        # The endpoint of broker 1 in the metadata that broker 2 received.
        return found.host, found.port

    await world.until(lambda: advertised() == (NODES[1], ports[1]), "the other broker knows")
    # The pod moves: its new process registers the address of another node.
    templates = [await template(world, node) for node in NODES]
    await peers[1].close()
    moved = on_node(peers[1].restarted(clean=True), "10.0.0.9")
    peers[1] = await world.start_peer(moved, operator)
    await world.until(lambda: advertised() == ("10.0.0.9", ports[1]), "and where it is now")
    await endpoints(world, 1, ("10.0.0.9", ports[1]))
    # No pod template changed, so no broker restarts.
    assert [await template(world, node) for node in NODES] == templates


async def columns(world: ClusterWorld) -> dict[str, Any]:
    """Return the columns of ``kubectl get cluster``."""
    path = f"{CLUSTER.path(world.namespace)}?limit=1"
    # The server renders kubectl's columns if a client accepts a Table.
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    api = world.api._client
    _, url, headers, _, _ = await api.param_serialize(
        "GET", path, header_params={"Accept": accept}, auth_settings=["BearerToken"]
    )
    response = await api.call_api("GET", url, headers, None)
    table = json.loads(await response.read())
    names = [item["name"] for item in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


async def template(world: ClusterWorld, node: int) -> Json:
    """Return a broker's pod template."""
    found: Json = (await pods.stateful_set(world, node))["spec"]["template"]
    return found


@pytest.mark.full
async def test_load_balancer_address_is_awaited_and_advertised(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await pods.create_broker(world, 1, listeners=listeners("LoadBalancer"))
    await pods.run(world, 1)
    # An address must not be in the pod template, otherwise its assignment would restart the broker.
    before = await template(world, 1)
    peer = await start_peer(world, 1, operator, "broker-1.ns.svc")
    advertised = await world.condition(
        BROKER, "broker-1", "ExternalAddress", "False", "AddressPending"
    )
    assert "broker-1-out" in advertised["message"]
    # Without an address the external listener is not advertised.
    assert [listener.name for listener in peer.brokers[1].listeners] == ["PLAINTEXT"]
    for service, address in (
        ("broker-1-out", {"hostname": "one.example.com"}),
        ("demo-out-bootstrap", {"ip": "192.0.2.7"}),
    ):
        await world.until(lambda name=service: world.exists(SERVICE, name), service)
        # The cloud provider assigns addresses.
        status = {"loadBalancer": {"ingress": [address]}}
        await world.api.merge_patch(SERVICE, world.namespace, service, {"status": status}, "status")
    await endpoints(world, 1, ("one.example.com", 9095))
    await world.condition(BROKER, "broker-1", "ExternalAddress", "True", "Advertised")
    # The Cluster is reconciled by its own events only, so touch it.
    await world.annotate(CLUSTER, "demo", touched="1")
    await bootstrap(world, "192.0.2.7:9095")
    await world.until(
        lambda: any(listener.host == "one.example.com" for listener in peer.brokers[1].listeners),
        "brokers are notified",
    )
    assert await template(world, 1) == before, "no restart for an address"


@pytest.mark.full
async def test_taken_port_is_reported_until_it_is_free(world: ClusterWorld) -> None:
    await world.create_cluster()
    # A Service of another owner has the node port that the Broker requests.
    operator = await pods.start_operator(world)
    spec = {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]}
    foreign_service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "theirs"},
        "spec": spec,
    }
    await world.api.create(SERVICE, world.namespace, foreign_service)
    taken = await node_port(world, "theirs")
    fixed = listeners(brokers=[{"nodeId": 1, "nodePort": taken}])
    await pods.create_broker(world, 1, listeners=fixed)
    advertised = await world.condition(BROKER, "broker-1", "Stalled", "True", "AddressRefused")
    assert str(taken) in advertised["message"]
    # The broker runs without its external address.
    assert await world.exists(STATEFUL_SET, "broker-1"), "its pod is made all the same"
    await world.delete(SERVICE, "theirs")
    await world.annotate(BROKER, "broker-1", touched="1")
    await world.until(lambda: world.exists(SERVICE, "broker-1-out"), "the Service", 60)
    # Freed, the port is assigned to the Broker's Service.
    assert await node_port(world, "broker-1-out") == taken
    await start_peer(world, 1, operator, "10.0.0.1")
    await endpoints(world, 1, ("10.0.0.1", taken))


@pytest.mark.full
async def test_services_of_a_former_external_listener_are_deleted(
    world: ClusterWorld,
) -> None:
    """Another type changes the same Service; an operator that starts later removes it."""
    await world.create_cluster()
    operator = await pods.start_operator(world)
    await pods.create_broker(world, 1, listeners=listeners())
    port = await node_port(world, "broker-1-out")
    await node_port(world, "demo-out-bootstrap")
    await start_peer(world, 1, operator, "10.0.0.1")
    await endpoints(world, 1, ("10.0.0.1", port))
    # The type changes in both directions without a new Service.
    for type_ in ("LoadBalancer", "NodePort"):
        await world.patch(BROKER, "broker-1", pod={"listeners": listeners(type_)})

        async def is_of(type_: str = type_) -> bool:
            return (await world.get(SERVICE, "broker-1-out"))["spec"]["type"] == type_

        await world.until(is_of, f"a Service of type {type_}")
    await world.condition(CLUSTER, "demo", "ExternalAddress", "True")
    # The manifest changes while no operator runs.
    await operator.stop()
    await world.patch(BROKER, "broker-1", pod={"listeners": listeners("")})
    await pods.start_operator(world)
    # The next operator deletes the Services that no listener needs.
    for name in ("broker-1-out", "demo-out-bootstrap"):
        await world.until(lambda name=name: world.is_deleted(SERVICE, name), f"{name} goes")
    for kind, name in ((BROKER, "broker-1"), (CLUSTER, "demo")):
        await world.status_where(
            kind, name, lambda found: not condition_of(found, "ExternalAddress")
        )
    # The internal Service stays.
    assert await world.exists(SERVICE, "broker-1")


# ------------------------------------------------------------------ a real broker


async def test_client_receives_the_addresses_of_its_own_listener(
    world: ClusterWorld, tmp_path: Path
) -> None:
    """The test acts as kubelet: files, the environment, and ports of this machine.

    The node port's destination is set once the process has one, without a restart.
    """
    operator = OperatorProcess(
        world.kubeconfig,
        world.namespace,
        tmp_path / "operator.log",
        "127.0.0.1:0",
        certificates=None,
        controller_addresses=pods.ADDRESSES,
    )
    world.operators.append(operator)
    await world.create_cluster()
    await operator.start()
    await pods.create_broker(world, 1, listeners=listeners())
    # The test acts as kubelet from here on.
    await pods.run(world, 1)
    await pods.mount(world, "broker-1-tls", tmp_path / "certificate")
    await world.until(lambda: world.exists(CONFIG_MAP, "broker-1"), "its configuration")
    entries = entries_of(await world.get(CONFIG_MAP, "broker-1"))
    variables = (await template(world, 1))["spec"]["containers"][0]["env"]
    advertised = variables[1]["value"].replace("$(NODE_ADDRESS)", "127.0.0.1")
    advertised = advertised.replace(f"broker-1.{world.namespace}.svc", "localhost")
    # Port 0: the machine assigns ports, so that tests can run in parallel.
    for number in (9092, 9094, 9095):
        advertised = advertised.replace(f":{number}", ":0")
    here = {
        "listeners": entries["listeners"].replace("0.0.0.0", "127.0.0.1"),
        "controller.addresses": operator.control,
        "log.dir": str(tmp_path / "data" / "log"),
        "tidemark.tls.directory": str(tmp_path / "certificate"),
        "metrics.port": "0",
    }
    for number in (9092, 9094, 9095):
        here["listeners"] = here["listeners"].replace(f":{number}", ":0")
    (tmp_path / "data").mkdir()
    config = tmp_path / "broker.properties"
    config.write_text("\n".join(f"{key}={text}" for key, text in (entries | here).items()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidemark_broker", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {variables[1]["name"]: advertised},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        inside, outside = (ready["listeners"][name] for name in ("PLAINTEXT", "OUT"))
        port = int(outside.rpartition(":")[2])
        # The real port becomes the external one, without a restart of the broker.
        own = listeners(brokers=[{"nodeId": 1, "port": port}])
        await world.patch(BROKER, "broker-1", pod={"listeners": own})
        await endpoints(world, 1, ("127.0.0.1", port))
        await world.create_topic("t", replicas=1)
        await world.condition(TOPIC, "t", "Ready", "True")
        # Each listener returns its own address: localhost inside, 127.0.0.1 outside.
        for address, host in ((inside, "localhost"), (f"127.0.0.1:{port}", "127.0.0.1")):
            await world.until(
                lambda a=address, h=host: receives_address(a, h), f"{host} at {address}"
            )
        # Records written outside are readable over both.
        assert await produce_async(f"127.0.0.1:{port}", "t", [b"a", b"b"]) == [0, 1]
        assert await consume_async(inside, "t", 2) == [(0, b"a"), (1, b"b")]
        assert await consume_async(f"127.0.0.1:{port}", "t", 2) == [(0, b"a"), (1, b"b")]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def receives_address(address: str, host: str) -> bool:
    """Return whether a client that bootstraps there receives this host, and the same port."""

    def list_brokers() -> Any:
        return AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).brokers

    (found,) = (await asyncio.to_thread(list_brokers)).values()
    return (found.host, found.port) == (host, int(address.rpartition(":")[2]))
