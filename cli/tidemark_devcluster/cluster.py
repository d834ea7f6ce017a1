"""Start and stop a local cluster: control plane, tier, operator, brokers, in that order.

Every part is the real program in a process of its own. A start is idempotent: running processes are
left alone, so ``up`` after a crash starts only what is missing.
"""

import importlib.metadata
import ipaddress
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.export_job import SOURCE_JARS_VARIABLE
from tidemark_devcluster import processes
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.own_brokers import READY_TIMEOUT_S, STARTS_AT_ONCE, LocalOwnBrokers
from tidemark_devcluster.ports import HOST
from tidemark_devcluster.processes import ProcessRecord
from tidemark_devcluster.settings import KAFKA, LocalClusterSettings
from tidemark_devcluster.toolchain.cache import numba_environment
from tidemark_kube.client import LEASE_NAME, KubeClient, KubeRequestError

if TYPE_CHECKING:
    from tidemark_devcluster.kafka_nodes import KafkaNodes


@dataclass(frozen=True, slots=True)
class ListenerAddresses:
    """Listener that one or more brokers share.

    ``bootstrap`` is the list of addresses. ``proof`` names the authentication, "" for none.
    ``is_local``: it is reachable only from this machine.
    """

    name: str
    protocol: str
    proof: str
    is_local: bool
    bootstrap: str


def listeners_of(records: Iterable[ProcessRecord]) -> list[ListenerAddresses]:
    """Return the client listeners of the running brokers, in the order of their configuration.

    Listeners of several brokers with equal properties are combined.
    """
    addresses_of: dict[tuple[str, str, str, bool], list[str]] = {}
    for record in records:
        for listener in record.ready.get("clients") or ():
            kind = (
                listener["name"],
                listener["protocol"],
                listener["proof"],
                _is_loopback(listener["bound"]),
            )
            addresses_of.setdefault(kind, []).append(listener["address"])
    return [ListenerAddresses(*kind, ",".join(at)) for kind, at in addresses_of.items()]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def described(listeners: Sequence[ListenerAddresses], *, authorize: bool | None) -> list[str]:
    """Return a line for each listener: which clients it accepts, and what they may do.

    ``authorize``: whether ACLs decide; None if unknown.
    """
    may = "do what ACLs allow" if authorize else "do everything"
    unless = ", unless the Cluster has an authorization" if authorize is None else ""
    return [
        f"{listener.name} {listener.bootstrap} ({listener.protocol}): "
        f"{_clients(listener)} may {may}{unless}"
        for listener in listeners
    ]


def _clients(listener: ListenerAddresses) -> str:
    if listener.proof:
        return f"authenticated clients ({listener.proof})"
    where = "from this machine" if listener.is_local else "from any machine"
    return f"no authentication: every client {where}"


Say = Callable[[str], None]
BUCKET = "tidemark"
SECRET = "tidemark-s3"
#: Longer than an operator's default: a laptop compiles, sleeps or swaps for seconds, in which an
#: operator that cannot renew its Lease would stop leading, and every broker would lose its
#: controller. No start waits for it: ``up`` frees the Lease of an operator that was killed.
LEASE_DURATION_S = 15


#: Order of processes that stop after the brokers, which hand over leaderships through them.
_STOPPED_LATE = {"operator": 1, "minio": 2, "control-plane": 3}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a running cluster: files, listeners, endpoints and process ids."""

    kubeconfig: str
    bootstrap: str
    metrics: str
    processes: dict[str, int]
    listeners: list[ListenerAddresses]

    def as_json(self) -> str:
        """Return the JSON object that ``--output json`` prints."""
        return json.dumps(asdict(self))


class LocalCluster:
    """Local cluster of ``tidemark up``, with all its files in one folder.

    ``say`` receives a line for each step. ``entries`` are added to the configuration of each
    Tidemark broker that is created here, ``operator_options`` to the operator's command line.
    """

    #: Brokers of the engine; which class it is depends on the settings.
    brokers: "KafkaNodes | LocalOwnBrokers"

    def __init__(
        self,
        layout: Layout,
        settings: LocalClusterSettings,
        say: Say,
        *,
        entries: Mapping[str, str] | None = None,
        operator_options: Sequence[str] = (),
    ) -> None:
        """Choose the implementation of the brokers; nothing is started."""
        # Paths in the cluster's folder, and the settings that were stored at its creation.
        self.layout = layout
        self.settings = settings
        self._say = say
        self._operator_options = operator_options
        if settings.engine == KAFKA:
            # Imported only here: Kafka's client and schema take longer than most commands.
            from tidemark_devcluster.kafka_nodes import KafkaNodes

            self.brokers = KafkaNodes(layout)
        else:
            self.brokers = LocalOwnBrokers(layout, settings, self.kubeconfig, entries or {})

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the kubeconfig for the cluster's API server."""
        if self.settings.kubeconfig:
            return Path(self.settings.kubeconfig)
        return self.layout.control_plane / "kubeconfig"

    def kube(self) -> KubeClient:
        """Return a client for the cluster's namespace."""
        return KubeClient(self.kubeconfig, self.settings.namespace)

    def start(self, *, brokers: int, create_cluster: bool = True) -> Addresses:
        """Start everything and wait until each part is ready."""
        self.check_engine()
        self.start_control_plane()
        self.install_crds()
        spec = self.start_engine(brokers)
        if create_cluster:
            self.ensure_cluster(spec)
        self.start_operator()
        # Brokers that were added later are started too, or their replicas would stay offline.
        self.start_brokers(sorted({*range(1, brokers + 1), *self.brokers.broker_ids()}))
        return self.addresses()

    def check_engine(self) -> None:
        """Fail before anything starts if Java or Maven is missing. Raises ToolchainError."""
        if self.settings.engine == KAFKA:
            from tidemark_devcluster.toolchain import maven

            maven.java()
            maven.ensure_jars(maven.KAFKA)

    def start_control_plane(self) -> None:
        """Start etcd and kube-apiserver, unless an existing cluster was named."""
        if self.settings.kubeconfig or processes.find(self.layout, "control-plane"):
            return
        # Imported only here: building Go programs needs more imports than most commands.
        from tidemark_devcluster.controlplane.launcher import ControlPlane

        plane = ControlPlane.start(self.layout.control_plane, detached=True)
        processes.adopt(self.layout, "control-plane", plane.process.child, {"server": plane.server})
        self._say(f"control plane ready at {plane.server} (process {plane.pid})")

    def install_crds(self) -> None:
        """Apply the CustomResourceDefinitions and wait until they are served."""
        from tidemark_operator.resources.crdgen import custom_resource_definition
        from tidemark_operator.resources.kinds import KINDS

        crds = [custom_resource_definition(kind) for kind in KINDS]
        with self.kube() as kube:
            for crd in crds:
                kube.apply_crd(crd)
            for crd in crds:
                kube.await_served(crd["spec"]["names"]["kind"])
        self._say(f"{len(crds)} resource definitions installed")

    def start_engine(self, brokers: int) -> dict[str, Any]:
        """Start what must run before the Cluster object exists, and return the Cluster's ``spec``.

        For Apache Kafka that is ``brokers`` broker processes, otherwise the remote tier.
        """
        from tidemark.configuration.broker_keys import UNDER_REPLICATED_CREATION

        # Export jobs run as processes of the user who owns this cluster, so no path is barred.
        exports = {"jars": ["/"], "warehouses": ["/"]}
        # With Apache Kafka the operator manages existing brokers, so these must run before a
        # Cluster refers to their bootstrap address.
        if self.settings.engine == KAFKA:
            from tidemark_devcluster.kafka_nodes import KafkaNodes
            from tidemark_devcluster.toolchain.maven import KAFKA as KAFKA_JARS

            nodes = KafkaNodes(self.layout)
            nodes.prepare(brokers)
            self._say(f"Apache Kafka {KAFKA_JARS.version} ready at {nodes.bootstrap}")
            return {
                "config": {UNDER_REPLICATED_CREATION: "true"},
                "engine": {"kafka": {"bootstrapServers": nodes.bootstrap}},
                "exports": exports,
            }
        return {
            "config": {
                UNDER_REPLICATED_CREATION: "true",
                "remote.log.storage.system.enable": "true",
            },
            "remoteStorage": self.start_tier(),
            "exports": exports,
        }

    def start_tier(self) -> dict[str, Any]:
        """Start the remote tier's server, if any, and return a Cluster's ``spec.remoteStorage``."""
        if self.settings.tier == "directory":
            self.layout.tier.mkdir(exist_ok=True)
            return {"filesystem": {"path": str(self.layout.tier)}}
        # Imported only here: with a directory as tier, none of this is needed.
        from tidemark_devcluster.controlplane.minio import MinioServer, MinioSettings

        record = processes.find(self.layout, "minio")
        if record is None:
            server = MinioServer.start(self.layout.minio, detached=True)
            ready = {"endpoint": server.endpoint}
            record = processes.adopt(self.layout, "minio", server.process.child, ready)
            self._say(f"MinIO ready at {server.endpoint} (process {server.pid})")
        # Applied on every start: the Secret is missing if the control plane's data was removed.
        kept = MinioSettings.of(self.layout.minio)
        keys = {"accessKeyId": kept.access_key, "secretAccessKey": kept.secret_key}
        with self.kube() as kube:
            kube.apply_secret(SECRET, keys)
        return {
            "s3": {
                "endpoint": record.ready["endpoint"],
                "region": "us-east-1",
                "buckets": [BUCKET],
                "createBuckets": True,
                "credentialsSecretRef": {"name": SECRET},
            }
        }

    def ensure_cluster(self, spec: dict[str, Any]) -> None:
        """Create the ``Cluster`` object; an existing one keeps the settings of its owner."""
        with self.kube() as kube:
            if kube.get("Cluster", self.settings.cluster) is None:
                kube.apply("Cluster", self.settings.cluster, spec)
                self._say(f"clusters.tidemark.dev/{self.settings.cluster} created")

    def start_operator(self) -> None:
        """Start the operator unless it runs, and wait until it holds the leader-election Lease."""
        # A running operator is left alone, and then nothing is printed.
        former = processes.find(self.layout, "operator")
        if former is None and not self.settings.kubeconfig:
            # The only operator of this control plane is dead. It had no time to free its Lease.
            with self.kube() as kube:
                kube.free_lease(LEASE_NAME)
        record = processes.ensure(
            self.layout,
            "operator",
            [
                sys.executable,
                "-m",
                "tidemark_operator",
                *("--kubeconfig", str(self.kubeconfig)),
                *("--namespace", self.settings.namespace),
                *("--cluster", self.settings.cluster),
                *("--control", f"{HOST}:{self.settings.control_port}"),
                *("--metrics", f"{HOST}:{self.settings.metrics_port}"),
                *("--lease-duration-s", str(LEASE_DURATION_S)),
                *("--certificates", str(self.layout.certificates)),
                *("--exports", str(self.layout.exports)),
                *self._operator_options,
            ],
            timeout_s=READY_TIMEOUT_S,
            # For the jobs of Exports, which the operator starts.
            environment={**numba_environment(), **self._kafka_source()},
        )
        if record != former:
            self._say(f"operator ready (process {record.pid})")

    def _kafka_source(self) -> dict[str, str]:
        """Return the variable with the jars of Spark's Kafka source, for the jobs of Exports.

        The jars are downloaded if they are missing. Other jobs, and an installation without Spark,
        need none.
        """
        if self.settings.engine != KAFKA:
            return {}
        from tidemark_devcluster.toolchain import ToolchainError
        from tidemark_devcluster.toolchain.maven import ensure_jars, spark_kafka

        try:
            folder = ensure_jars(spark_kafka(importlib.metadata.version("pyspark")))
        except importlib.metadata.PackageNotFoundError:
            return {}
        except ToolchainError as error:  # the cluster works without Exports
            self._say(f"Exports are not available: {error}")
            return {}
        return {SOURCE_JARS_VARIABLE: ",".join(sorted(map(str, folder.glob("*.jar"))))}

    def start_brokers(self, node_ids: Sequence[int]) -> None:
        """Declare brokers, start them in parallel, and wait until all are registered and
        unfenced.
        """
        for node_id in node_ids:
            self.brokers.declare_broker(node_id)
        self._start_declared(node_ids)

    def start_reader(self, node_id: int) -> None:
        """Declare and start one Reader, see :meth:`start_brokers`."""
        brokers = self.brokers
        if not isinstance(brokers, LocalOwnBrokers):
            raise TypeError("Apache Kafka has no Readers")
        brokers.declare_broker(node_id, role="Reader")
        self._start_declared([node_id])

    def _start_declared(self, node_ids: Sequence[int]) -> None:
        for record in self.brokers.start(node_ids):
            self._say(f"{record.name} ready at {record.ready['listener']} (process {record.pid})")

    def start_broker(self, node_id: int) -> None:
        """Start one broker, see :meth:`start_brokers`."""
        self.start_brokers([node_id])

    def stop_broker(self, node_id: int) -> bool:
        """Shut a broker down cleanly; return False if it had to be killed or did not run."""
        record = processes.find(self.layout, f"broker-{node_id}")
        return processes.stop(self.layout, record, timeout_s=30) if record else False

    def kill_broker(self, node_id: int) -> bool:
        """Kill a broker with SIGKILL; return False if it did not run."""
        record = processes.find(self.layout, f"broker-{node_id}")
        if record is None:
            return False
        processes.kill(self.layout, record)
        return True

    def running(self) -> list[ProcessRecord]:
        """Return the records of the running processes."""
        return processes.running(self.layout)

    def stop(self, *, only_own: bool = False) -> list[str]:
        """Stop the running processes, brokers first, and return their names.

        ``only_own``: only those that this object's process has started.
        """
        records = [
            record
            for record in processes.running(self.layout)
            if not only_own or processes.is_child(record)
        ]
        # Brokers first: a clean shutdown needs the operator to move leaderships.
        brokers = [record for record in records if record.name.startswith("broker-")]
        with ThreadPoolExecutor(max_workers=STARTS_AT_ONCE) as pool:
            list(pool.map(self._stop, brokers))
        others = [record for record in records if record not in brokers]
        for record in sorted(others, key=lambda record: _STOPPED_LATE.get(record.name, 0)):
            self._stop(record)
        return [record.name for record in records]

    def _stop(self, record: ProcessRecord) -> None:
        clean = processes.stop(self.layout, record, timeout_s=30)
        self._say(f"{record.name} {'stopped' if clean else 'killed: it did not stop in 30 s'}")

    def addresses(self) -> Addresses:
        """Return the addresses of what runs now."""
        records = processes.running(self.layout)
        listeners = [r.ready["listener"] for r in records if "listener" in r.ready]
        operator = processes.find(self.layout, "operator")
        return Addresses(
            kubeconfig=str(self.kubeconfig),
            bootstrap=",".join(listeners),
            metrics=f"http://{operator.ready['metrics']}/metrics"
            if operator and operator.ready
            else "",
            processes={record.name: record.pid for record in records},
            listeners=listeners_of(records),
        )

    def authorizes(self) -> bool | None:
        """Return whether ACLs decide what clients may do; None if the API server does not
        answer.
        """
        try:
            with self.kube() as kube:
                cluster = kube.get("Cluster", self.settings.cluster) or {"spec": {}}
        except KubeRequestError:
            return None
        return "authorization" in cluster["spec"]

    def next_broker_id(self) -> int:
        """Return the lowest id above all that were ever used in the folder."""
        return max(self.brokers.broker_ids(), default=0) + 1
