"""Start and stop a local cluster: control plane, tier, operator, brokers, in that order.

Every part is the real one and a process of its own. Starting is idempotent: what runs already is
left alone, so ``up`` after a crash starts only what is missing.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tidemark.configuration.broker_keys import UNDER_REPLICATED_CREATION
from tidemark_cli.controlplane import ControlPlane, minio
from tidemark_cli.controlplane.minio import MinioServer
from tidemark_cli.local import processes
from tidemark_cli.local.kube import Kube, KubeError
from tidemark_cli.local.layout import Layout
from tidemark_cli.local.listeners import ListenerAddresses, listeners_of
from tidemark_cli.local.own_brokers import READY_TIMEOUT_S, STARTS_AT_ONCE, OwnBrokers
from tidemark_cli.local.processes import ProcessRecord
from tidemark_cli.local.settings import KAFKA, Settings
from tidemark_cli.ports import HOST

Say = Callable[[str], None]
BUCKET = "tidemark"
SECRET = "tidemark-s3"
#: Short, so that a second ``up`` after a kill -9 need not wait for the lease of the dead operator.
LEASE_DURATION_S = 4


#: After the brokers, and Apache Kafka's controllers, which these hand their leaderships over to.
_STOPPED_LATE = {"operator": 1, "minio": 2, "control-plane": 3}


class Brokers(Protocol):
    """The engine's part of a local cluster."""

    def ids(self) -> list[int]:
        """The brokers that were ever added here, ascending."""

    def declare(self, node_id: int) -> None:
        """What a broker needs before it is started for the first time."""

    def start(self, node_id: int) -> ProcessRecord:
        """Start one that was declared, and wait until it serves; the one that runs if it does."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a user needs to know of a running cluster."""

    kubeconfig: str
    bootstrap: str
    metrics: str
    processes: dict[str, int]
    listeners: list[ListenerAddresses]

    def as_json(self) -> str:
        """One JSON object, as ``--output json`` prints it."""
        return json.dumps(
            {
                "kubeconfig": self.kubeconfig,
                "bootstrap": self.bootstrap,
                "metrics": self.metrics,
                "processes": self.processes,
                "listeners": [asdict(each) for each in self.listeners],
            }
        )


class LocalCluster:
    """One cluster in one folder. ``say`` receives a line for each step. ``entries``: more of the
    configuration of each broker of ours that is made here."""

    def __init__(
        self,
        layout: Layout,
        settings: Settings,
        say: Say,
        *,
        entries: Mapping[str, str] | None = None,
    ) -> None:
        self.layout = layout
        self.settings = settings
        self._say = say
        self.brokers: Brokers
        if settings.engine == KAFKA:
            # Kafka's client and schema are imported where Apache Kafka runs: they take longer than
            # most commands.
            from tidemark_cli.local.kafka_brokers import KafkaBrokers

            self.brokers = KafkaBrokers(layout)
        else:
            self.brokers = OwnBrokers(layout, settings, self.kubeconfig, entries or {})

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster's API server."""
        if self.settings.kubeconfig:
            return Path(self.settings.kubeconfig)
        return self.layout.control_plane / "kubeconfig"

    def kube(self) -> Kube:
        """A client for the cluster's namespace."""
        return Kube(self.kubeconfig, self.settings.namespace)

    def start(self, *, brokers: int, create_cluster: bool = True) -> Addresses:
        """Bring everything up and wait until each part says that it is ready."""
        self.check_engine()
        self.start_control_plane()
        self.install_crds()
        spec = self.start_engine(brokers)
        if create_cluster:
            self.ensure_cluster(spec)
        self.start_operator()
        self.start_brokers(sorted({*range(1, brokers + 1), *self.brokers.ids()}))
        return self.addresses()

    def check_engine(self) -> None:
        """Whoever lacks Java or Maven is told before anything starts. Raises ToolchainError."""
        if self.settings.engine == KAFKA:
            from tidemark_cli.toolchain import maven

            maven.java()
            maven.ensure_jars(maven.KAFKA)

    def start_control_plane(self) -> None:
        """Start etcd and kube-apiserver, unless an existing cluster was named."""
        if self.settings.kubeconfig or processes.find(self.layout, "control-plane"):
            return
        plane = ControlPlane.start(self.layout.control_plane, detached=True)
        processes.adopt(self.layout, "control-plane", plane.process.child, {"server": plane.server})
        self._say(f"control plane ready at {plane.server} (process {plane.pid})")

    def install_crds(self) -> None:
        """Apply the CustomResourceDefinitions and wait until they are served."""
        from tidemark_operator.resources.crdgen import custom_resource_definition
        from tidemark_operator.resources.kinds import KINDS

        kube = self.kube()
        crds = [custom_resource_definition(kind) for kind in KINDS]
        for crd in crds:
            kube.apply_crd(crd)
        for crd in crds:
            kube.await_served(crd["spec"]["names"]["kind"])
        kube.close()
        self._say(f"{len(crds)} resource definitions installed")

    def start_engine(self, brokers: int) -> dict[str, Any]:
        """What has to be there before the Cluster; returns its ``spec``. ``brokers``: how many
        there are to be, where they run before the operator."""
        if self.settings.engine == KAFKA:
            from tidemark_cli.local.kafka_brokers import KafkaBrokers
            from tidemark_cli.toolchain.maven import KAFKA as KAFKA_JARS

            kafka = KafkaBrokers(self.layout)
            kafka.prepare(brokers)
            nodes = kafka.nodes
            self._say(f"Apache Kafka {KAFKA_JARS.version} ready at {nodes.bootstrap}")
            return {
                "config": {UNDER_REPLICATED_CREATION: "true"},
                "engine": {"kafka": {"bootstrapServers": nodes.bootstrap}},
            }
        return {
            "config": {
                UNDER_REPLICATED_CREATION: "true",
                "remote.log.storage.system.enable": "true",
            },
            "remoteStorage": self.start_tier(),
            # Jobs of Exports are processes of the user who owns this cluster, on their machine.
            "exports": {"jars": ["/"], "warehouses": ["/"]},
        }

    def start_tier(self) -> dict[str, Any]:
        """Make the remote tier reachable; returns a Cluster's ``spec.remoteStorage``."""
        if self.settings.tier == "directory":
            self.layout.tier.mkdir(exist_ok=True)
            return {"filesystem": {"path": str(self.layout.tier)}}
        record = processes.find(self.layout, "minio")
        if record is None:
            server = MinioServer.start(self.layout.minio, detached=True)
            ready = {"endpoint": server.endpoint}
            record = processes.adopt(self.layout, "minio", server.process.child, ready)
            self._say(f"MinIO ready at {server.endpoint} (process {server.pid})")
        kept = minio.Settings.of(self.layout.minio)
        keys = {"accessKeyId": kept.access_key, "secretAccessKey": kept.secret_key}
        kube = self.kube()
        kube.apply_secret(SECRET, keys)
        kube.close()
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
        """Create the ``Cluster`` object, or leave the one that is there as its owner wants it."""
        kube = self.kube()
        if kube.get("Cluster", self.settings.cluster) is None:
            kube.apply("Cluster", self.settings.cluster, spec)
            self._say(f"clusters.tidemark.dev/{self.settings.cluster} created")
        kube.close()

    def start_operator(self) -> None:
        """Start the operator and wait until it leads."""
        former = processes.find(self.layout, "operator")
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
            ],
            timeout_s=READY_TIMEOUT_S,
        )
        if record != former:
            self._say(f"operator ready (process {record.pid})")

    def start_brokers(self, node_ids: Sequence[int]) -> None:
        """Declare brokers, start them side by side, wait until all are registered and unfenced."""
        for node_id in node_ids:
            self.declare_broker(node_id)
        with ThreadPoolExecutor(max_workers=STARTS_AT_ONCE) as pool:
            for record in pool.map(self.brokers.start, node_ids):
                self._say(
                    f"{record.name} ready at {record.ready['listener']} (process {record.pid})"
                )

    def start_broker(self, node_id: int) -> None:
        """The same for one broker."""
        self.start_brokers([node_id])

    def declare_broker(self, node_id: int) -> None:
        """What a broker needs before it is started for the first time."""
        self.brokers.declare(node_id)

    def stop_broker(self, node_id: int) -> bool:
        """Shut a broker down cleanly; False when it had to be killed or did not run."""
        record = processes.find(self.layout, f"broker-{node_id}")
        return processes.stop(self.layout, record, timeout_s=30) if record else False

    def kill_broker(self, node_id: int) -> bool:
        """SIGKILL; False when it did not run."""
        record = processes.find(self.layout, f"broker-{node_id}")
        if record is None:
            return False
        processes.kill(self.layout, record)
        return True

    def running(self) -> frozenset[str]:
        """The names of all that runs here."""
        return frozenset(record.name for record in processes.running(self.layout))

    def stop(self, *, keep: Collection[str] = ()) -> list[str]:
        """Stop all that runs here but what is to be kept, brokers first; returns the names of those
        stopped."""
        records = [each for each in processes.running(self.layout) if each.name not in keep]
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
        """Where everything is that runs now."""
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
        """Do ACLs decide what clients may do? None where the API server does not say."""
        try:
            kube = self.kube()
            found = kube.get("Cluster", self.settings.cluster) or {"spec": {}}
            kube.close()
        except KubeError:
            return None
        return "authorization" in found["spec"]

    def next_broker_id(self) -> int:
        """The lowest id above all that were ever used here."""
        return max(self.brokers.ids(), default=0) + 1
