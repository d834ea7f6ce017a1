"""The configuration of a broker in a pod, as the text of its file.

A broker in a pod listens on all addresses of the pod, and tells others the name of its own Service.
Where clients come by a port of its node, it tells the operator the address of that, which it is
given with the environment: nobody else has to know on which node a pod is, and none restarts when
the operator makes of it what clients are told.
"""

import hashlib

from tidemark_operator.pods.identity import PodBroker
from tidemark_operator.resources.broker_pod import BrokerPod, PodListener
from tidemark_operator.resources.external_listener import ExternalType
from tidemark_operator.resources.metadata import InvalidResource

FILE = "broker.properties"
CONFIG_FOLDER = "/etc/tidemark/broker"
CERTIFICATE_FOLDER = "/etc/tidemark/certificate"
LISTENERS_FOLDER = "/etc/tidemark/listeners"
DATA_FOLDER = "/var/lib/tidemark"
#: Variables of the broker's environment: the InternalIP of its node; what it advertises.
NODE_ADDRESS, ADVERTISED = "NODE_ADDRESS", "TIDEMARK_ADVERTISED_LISTENERS"
_ENDS_LINE = frozenset("\r\n")


def listener_folder(listener: PodListener) -> str:
    """Where a listener's certificate is mounted."""
    return f"{LISTENERS_FOLDER}/{listener.name.lower()}"


def entries(pod: BrokerPod, broker: PodBroker) -> dict[str, str]:
    """Keys and values. What the operator sets goes before what the manifest says."""
    folders = {
        f"listener.name.{listener.name.lower()}.tidemark.tls.directory": listener_folder(listener)
        for listener in pod.listeners
        if listener.tls_secret_ref is not None
    }
    rack = {} if broker.rack is None else {"broker.rack": broker.rack}
    told = {} if knows_node(pod) else {"advertised.listeners": advertised(pod, broker)}
    return {
        **pod.config,
        **folders,
        **rack,
        **told,
        "node.id": str(broker.node_id),
        "log.dir": f"{DATA_FOLDER}/log",
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port in _ports(pod).items()),
        "listener.security.protocol.map": ",".join(
            f"{listener.name}:{listener.protocol}" for listener in pod.listeners
        ),
        "controller.addresses": broker.controllers,
        "tidemark.tls.directory": CERTIFICATE_FOLDER,
        "metrics.host": "0.0.0.0",
        "metrics.port": str(pod.metrics_port),
    }


def _ports(pod: BrokerPod) -> dict[str, int]:
    ports = {listener.name: listener.port for listener in pod.listeners}
    return {**ports, "REPLICATION": pod.replication_port}


def knows_node(pod: BrokerPod) -> bool:
    """Whether the process is told by its environment what it advertises, as the address of its node
    is part of that."""
    return bool(_on_nodes(pod))


def advertised(pod: BrokerPod, broker: PodBroker) -> str:
    """``advertised.listeners``; the variable :data:`NODE_ADDRESS` in it is Kubernetes' to fill."""
    on_nodes = _on_nodes(pod)
    hosts = {
        name: f"[$({NODE_ADDRESS})]" if name in on_nodes else broker.host for name in _ports(pod)
    }
    return ",".join(f"{name}://{hosts[name]}:{port}" for name, port in _ports(pod).items())


def _on_nodes(pod: BrokerPod) -> frozenset[str]:
    return frozenset(
        each.name
        for each in pod.listeners
        if each.external is not None and each.external.type is ExternalType.NODE_PORT
    )


def text(pod: BrokerPod, broker: PodBroker) -> str:
    """The file, the same for the same configuration. ``InvalidResource`` where a value would begin
    a line of its own: admission refuses it, and this is what holds without it."""
    found = sorted(entries(pod, broker).items())
    for key, value in found:
        if not _ENDS_LINE.isdisjoint(key + value):
            raise InvalidResource(f"the value of {key} has a line break. Remove it")
    return "".join(f"{key}={value}\n" for key, value in found)


def digest(content: str) -> str:
    """Stands in the pod's annotations: another configuration is another pod."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]
