"""Clients that are no part of the Kubernetes cluster, by a port of the node or a load balancer."""

import copy
import functools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.client import BOOTSTRAP
from e2e.pods.kubernetes import condition
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import BROKERS, PARTITIONS, RECORDS, Stage

TOPIC = "outside"
CLIENT_TIMEOUT_S = 60
#: Addresses for documentation (RFC 5737), which no host has.
BALANCERS = "192.0.2."
BALANCED_PORT = 9097
LISTENERS: dict[str, Any] = {
    "NODES": {"port": 9096, "protocol": "PLAINTEXT", "external": {"type": "NodePort"}},
    "BALANCED": {
        "port": BALANCED_PORT,
        "protocol": "PLAINTEXT",
        "external": {"type": "LoadBalancer"},
    },
}


def _opened(stage: Stage) -> None:
    """helm waits for the Cluster, and the Cluster for addresses: meanwhile this is the cloud."""
    begun = time.monotonic()
    pods = stage.values["brokerPods"]
    pods["listeners"] = {**pods.get("listeners", {}), **copy.deepcopy(LISTENERS)}
    # The installation waits for addresses that only this thread gives.
    with ThreadPoolExecutor(1) as beside:
        installing = beside.submit(stage.install)
        # First without addresses: each Broker has to say what it waits for.
        stage.wait("a word of what is missing", lambda: _unsaid(stage))
        _give_balancers(stage)
        installing.result()
    for name in LISTENERS:
        stage.wait(f"every broker by {name}", functools.partial(_without, stage, name))
    # A new listener restarts the brokers one after the other.
    stage.wait("restarts that are over", lambda: _waiting(stage))
    stage.recovered()
    stage.wait("the Cluster's condition", lambda: _not_advertised(stage))
    stage.progress.figure("listeners opened, all restarted", f"{time.monotonic() - begun:.0f} s")


def _unsaid(stage: Stage) -> str:
    """Why not every broker is said to wait for a load balancer."""
    left = _without(stage, "BALANCED")
    names = _balanced()
    return "" if all(name in left for name in names) else f"not {', '.join(names)}: {left}"


def _balanced() -> list[str]:
    return [f"broker-{number}-balanced" for number in range(1, BROKERS + 1)]


def _give_balancers(stage: Stage) -> None:
    """Write an address for each Service, as a cloud's controller does."""
    for number, name in enumerate([*_balanced(), "tidemark-balanced-bootstrap"], start=1):
        status = {"loadBalancer": {"ingress": [{"ip": f"{BALANCERS}{number}"}]}}
        patch = ("--type", "merge", "--patch", json.dumps({"status": status}))
        what = ("patch", "service", name, "--subresource", "status")
        stage.kubernetes.run("--namespace", NAMESPACE, *what, *patch)


def _without(stage: Stage, listener: str) -> str:
    """Return the brokers that a listener does not advertise; "" if there are none."""
    left = []
    for number in range(1, BROKERS + 1):
        body = stage.kubernetes.get(NAMESPACE, "brokers.tidemark.dev", f"broker-{number}")
        told = body.get("status", {}).get("externalEndpoints") or []
        if listener not in {item["name"] for item in told}:
            message = condition(body, "ExternalAddress").get("message", "no condition")
            left.append(f"broker-{number}: {message}")
    return "; ".join(left)


def _servers(stage: Stage, listener: str) -> str:
    """Return the bootstrap servers of a listener from the Cluster's status."""
    body = stage.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
    told = body.get("status", {}).get("externalListeners") or []
    return next((item["bootstrapServers"] for item in told if item["name"] == listener), "")


def _told(servers: str) -> dict[int, tuple[str, int]]:
    """Return the advertised address of each broker, as a client of the servers receives it."""
    client = AdminClient({"bootstrap.servers": servers})
    found = client.list_topics(timeout=CLIENT_TIMEOUT_S).brokers
    return {node: (str(item.host), item.port) for node, item in found.items()}


def _by_nodes(stage: Stage) -> None:
    """Check that the only advertised address is that of the node that all pods run on."""
    stage.make_topic(TOPIC)
    servers = _servers(stage, "NODES")
    (node,) = stage.kubernetes.all("", "nodes")
    addresses = {item["type"]: item["address"] for item in node["status"]["addresses"]}
    # Outside, all brokers share the node's address and differ in their ports.
    told = _told(servers)
    hosts, ports = {host for host, _ in told.values()}, {port for _, port in told.values()}
    if hosts != {addresses["InternalIP"]} or len(ports) != BROKERS:
        raise Failed(f"by {servers} a client receives {told}")
    # Inside, the addresses of the Services stay as they were.
    inside = _told(BOOTSTRAP)
    if {host for host, _ in inside.values()} != {
        f"broker-{number}.{NAMESPACE}.svc" for number in range(1, BROKERS + 1)
    }:
        raise Failed(f"by {BOOTSTRAP} a client receives {inside}")
    _write_and_read(stage, servers)


def _write_and_read(stage: Stage, servers: str) -> None:
    first = stage.written[TOPIC]
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for number in range(first, first + RECORDS):
        producer.produce(TOPIC, b"%08d" % number + bytes(100))
        producer.poll(0)
    if producer.flush(CLIENT_TIMEOUT_S):
        raise Failed(f"not every record was acknowledged within {CLIENT_TIMEOUT_S} s")
    stage.written[TOPIC] += RECORDS
    found = _read(servers, stage.written[TOPIC])
    if found != set(range(stage.written[TOPIC])):
        raise Failed(f"{len(found)} of {stage.written[TOPIC]} records were read")
    stage.consume(TOPIC)


def _read(servers: str, count: int) -> set[int]:
    options = {"bootstrap.servers": servers, "group.id": "outside", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(TOPIC, part, 0) for part in range(PARTITIONS)])
    found: set[int] = set()
    deadline_s = time.monotonic() + CLIENT_TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(500, 0.5):
            value = message.value()
            if message.error() is None and value is not None:
                found.add(int(value[:8]))
    consumer.close()
    return found


def _pod_deleted(stage: Stage) -> None:
    before = _told(_servers(stage, "NODES"))
    uid = stage.pod("broker-1-0")["metadata"]["uid"]
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "pod", "broker-1-0")
    # A NodePort belongs to the Service, so it outlives the pod.
    stage.wait(
        "a new pod",
        lambda: "" if stage.pod("broker-1-0")["metadata"]["uid"] != uid else "the old one",
    )
    stage.recovered()
    stage.wait(
        "the same addresses",
        lambda: "" if _told(_servers(stage, "NODES")) == before else "not yet",
    )
    _write_and_read(stage, _servers(stage, "NODES"))


def _not_advertised(stage: Stage) -> str:
    body = stage.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
    found = condition(body, "ExternalAddress")
    return "" if found.get("status") == "True" else str(found)


def _by_balancers(stage: Stage) -> None:
    """Check advertised load balancers.

    Clients use a pod's address, because no load balancer exists here.
    """
    bootstrap = f"{BALANCERS}{BROKERS + 1}:{BALANCED_PORT}"
    if (found := _servers(stage, "BALANCED")) != bootstrap:
        raise Failed(f"clients begin at {found}, not {bootstrap}")
    pod = stage.pod("broker-1-0")["status"]["podIP"]
    told = _told(f"{pod}:{BALANCED_PORT}")
    wanted = {number: (f"{BALANCERS}{number}", BALANCED_PORT) for number in range(1, BROKERS + 1)}
    if told != wanted:
        raise Failed(f"a client receives {told}")


def _closed(stage: Stage) -> None:
    for name in LISTENERS:
        del stage.values["brokerPods"]["listeners"][name]
    stage.install()
    stage.wait("the Services to go", lambda: _left(stage))
    stage.wait("restarts that are over", lambda: _waiting(stage))
    stage.recovered()
    stage.consume(TOPIC)


def _left(stage: Stage) -> str:
    left = [name for name in stage.kubernetes.names(NAMESPACE, "services") if "balanced" in name]
    left += [name for name in stage.kubernetes.names(NAMESPACE, "services") if "nodes" in name]
    return ", ".join(left)


def _waiting(stage: Stage) -> str:
    """Brokers whose pods are yet to be as wanted."""
    for body in stage.kubernetes.all(NAMESPACE, "brokers.tidemark.dev"):
        found = condition(body, "PodUpToDate")
        observed = body["status"].get("observedGeneration")
        if found.get("status") != "True" or observed != body["metadata"]["generation"]:
            return f"{body['metadata']['name']}: {found}"
    return ""


CHAPTER = Chapter(
    "outside",
    "listeners that are reached from outside, by ports of the node and by load balancers",
    (
        Step("two listeners open once load balancers have addresses", _opened),
        Step("a client writes and reads by ports of the node", _by_nodes, beside_pods=True),
        Step("and after a broker's pod was replaced", _pod_deleted, beside_pods=True),
        Step(
            "addresses of load balancers are advertised on their listener",
            _by_balancers,
            beside_pods=True,
        ),
        Step("the listeners are closed and their Services go", _closed),
    ),
    takes_s=72,
)
