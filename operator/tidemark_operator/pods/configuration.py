"""Configuration file of a broker in a pod.

A broker in a pod listens on all addresses of the pod, and announces the name of its own Service. If
clients use a port of its node, the broker reports the node's address, from its environment, to the
operator. No other part then has to know a pod's node, and no pod restarts when the operator changes
the addresses that clients receive.
"""

import hashlib

from tidemark.configuration.broker_keys import CHUNK_CACHE_PATH
from tidemark_operator.pods.identity import PodBroker
from tidemark_operator.resources.broker_pod import BrokerPod, PodListener
from tidemark_operator.resources.external_listener import ExternalType
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.scalars import quantity_bytes

FILE = "broker.properties"
CONFIG_FOLDER = "/etc/tidemark/broker"
CERTIFICATE_FOLDER = "/etc/tidemark/certificate"
LISTENERS_FOLDER = "/etc/tidemark/listeners"
DATA_FOLDER = "/var/lib/tidemark"
CHUNK_CACHE_FOLDER = "/var/cache/tidemark"
#: Share of its volume that the cache of chunks uses. The kubelet evicts a pod whose emptyDir is
#: larger than its limit.
_CHUNK_CACHE_SHARE = 0.9
#: Environment variables of the broker: the InternalIP of its node; its advertised listeners.
NODE_ADDRESS, ADVERTISED = "NODE_ADDRESS", "TIDEMARK_ADVERTISED_LISTENERS"
_ENDS_LINE = frozenset("\r\n")


def listener_folder(listener: PodListener) -> str:
    """Return the folder with a listener's certificate."""
    return f"{LISTENERS_FOLDER}/{listener.name.lower()}"


def entries(pod: BrokerPod, broker: PodBroker) -> dict[str, str]:
    """Return the entries of a broker's server.properties; the operator's keys take precedence."""
    folders = {
        f"listener.name.{listener.name.lower()}.tidemark.tls.directory": listener_folder(listener)
        for listener in pod.listeners
        if listener.tls_secret_ref is not None
    }
    rack = {} if broker.rack is None else {"broker.rack": broker.rack}
    # A node's address is only known in the pod, so an environment variable has the value.
    fixed = {} if knows_node(pod) else {"advertised.listeners": advertised(pod, broker)}
    return {
        **pod.config,
        **_chunk_cache(pod),
        **folders,
        **rack,
        **fixed,
        "node.id": str(broker.node_id),
        "log.dir": f"{DATA_FOLDER}/log",
        # All addresses: the pod's own is not known before it starts.
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port in _ports(pod).items()),
        "listener.security.protocol.map": ",".join(
            f"{listener.name}:{listener.protocol}" for listener in pod.listeners
        ),
        "controller.addresses": broker.controllers,
        "tidemark.tls.directory": CERTIFICATE_FOLDER,
        "metrics.host": "0.0.0.0",
        "metrics.port": str(pod.metrics_port),
    }


def _chunk_cache(pod: BrokerPod) -> dict[str, str]:
    if pod.chunk_cache is None:
        return {}
    size_bytes = int(quantity_bytes(pod.chunk_cache.size) * _CHUNK_CACHE_SHARE)
    return {
        "tidemark.remote.chunk.cache.disk.bytes": str(size_bytes),
        CHUNK_CACHE_PATH: CHUNK_CACHE_FOLDER,
    }


def _ports(pod: BrokerPod) -> dict[str, int]:
    ports = {listener.name: listener.port for listener in pod.listeners}
    return {**ports, "REPLICATION": pod.replication_port}


def knows_node(pod: BrokerPod) -> bool:
    """Return whether the advertised listeners contain the node's address, from the environment."""
    return bool(_on_nodes(pod))


def advertised(pod: BrokerPod, broker: PodBroker) -> str:
    """Return ``advertised.listeners``; Kubernetes replaces :data:`NODE_ADDRESS` in it."""
    on_nodes = _on_nodes(pod)
    hosts = {
        name: f"[$({NODE_ADDRESS})]" if name in on_nodes else broker.host for name in _ports(pod)
    }
    return ",".join(f"{name}://{hosts[name]}:{port}" for name, port in _ports(pod).items())


def _on_nodes(pod: BrokerPod) -> frozenset[str]:
    return frozenset(
        listener.name
        for listener in pod.listeners
        if listener.external is not None and listener.external.type is ExternalType.NODE_PORT
    )


def text(pod: BrokerPod, broker: PodBroker) -> str:
    """Return the content of the file; it is the same for the same configuration.

    Raises ``InvalidResource`` if a value contains a line end and could add a key. Admission rejects
    that too; this check also protects clusters without the admission policy.
    """
    found = sorted(entries(pod, broker).items())
    for key, value in found:
        if not _ENDS_LINE.isdisjoint(key + value):
            raise InvalidResource(f"the value of {key} has a line break. Remove it")
    return "".join(f"{key}={value}\n" for key, value in found)


def digest(content: str) -> str:
    """Return the digest for the pod's annotations: another configuration means another pod."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]
