"""The configuration of a broker in a pod, as the text of its file.

A broker in a pod listens on all addresses of the pod, and tells others the name of its own Service.
"""

import hashlib

from tidemark_operator.pods.identity import PodBroker
from tidemark_operator.resources.broker_pod import BrokerPod, PodListener
from tidemark_operator.resources.metadata import InvalidResource

FILE = "broker.properties"
CONFIG_FOLDER = "/etc/tidemark/broker"
CERTIFICATE_FOLDER = "/etc/tidemark/certificate"
LISTENERS_FOLDER = "/etc/tidemark/listeners"
DATA_FOLDER = "/var/lib/tidemark"
_ENDS_LINE = frozenset("\r\n")


def listener_folder(listener: PodListener) -> str:
    """Where a listener's certificate is mounted."""
    return f"{LISTENERS_FOLDER}/{listener.name.lower()}"


def entries(pod: BrokerPod, broker: PodBroker) -> dict[str, str]:
    """Keys and values. What the operator sets goes before what the manifest says."""
    ports = {listener.name: listener.port for listener in pod.listeners}
    ports["REPLICATION"] = pod.replication_port
    folders = {
        f"listener.name.{listener.name.lower()}.tidemark.tls.directory": listener_folder(listener)
        for listener in pod.listeners
        if listener.tls_secret_ref is not None
    }
    rack = {} if broker.rack is None else {"broker.rack": broker.rack}
    return {
        **pod.config,
        **folders,
        **rack,
        "node.id": str(broker.node_id),
        "log.dir": f"{DATA_FOLDER}/log",
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(
            f"{name}://{broker.host}:{port}" for name, port in ports.items()
        ),
        "listener.security.protocol.map": ",".join(
            f"{listener.name}:{listener.protocol}" for listener in pod.listeners
        ),
        "controller.addresses": broker.controllers,
        "tidemark.tls.directory": CERTIFICATE_FOLDER,
        "metrics.host": "0.0.0.0",
        "metrics.port": str(pod.metrics_port),
    }


def text(pod: BrokerPod, broker: PodBroker) -> str:
    """The file, the same for the same configuration. ``InvalidResource`` where a value would begin
    a line of its own: admission refuses it, and this is what holds without it."""
    found = sorted(entries(pod, broker).items())
    for key, value in found:
        if not _ENDS_LINE.isdisjoint(key + value):
            raise InvalidResource(f"the value of {key} is more than one line: make it one")
    return "".join(f"{key}={value}\n" for key, value in found)


def digest(content: str) -> str:
    """Stands in the pod's annotations: another configuration is another pod."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]
