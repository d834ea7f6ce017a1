"""Start and stop a local cluster: control plane, tier, operator, brokers, in that order.

Every part is the real one and a process of its own. Starting is idempotent: what runs already is
left alone, so ``up`` after a crash starts only what is missing.
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.tls.files import CERTIFICATE
from tidemark_cli.controlplane import ControlPlane, minio
from tidemark_cli.controlplane.minio import MinioServer
from tidemark_cli.local import processes
from tidemark_cli.local.kube import Kube, KubeError
from tidemark_cli.local.layout import Layout, write_json
from tidemark_cli.local.listeners import ListenerAddresses, listeners_of
from tidemark_cli.local.processes import ProcessRecord
from tidemark_cli.local.settings import Settings
from tidemark_cli.ports import HOST, free_ports
from tidemark_operator.resources.crdgen import custom_resource_definition
from tidemark_operator.resources.kinds import KINDS

Say = Callable[[str], None]
BUCKET = "tidemark"
SECRET = "tidemark-s3"
READY_TIMEOUT_S = 60.0
STARTS_AT_ONCE = 4
#: Short, so that a second ``up`` after a kill -9 need not wait for the lease of the dead operator.
LEASE_DURATION_S = 4
#: A local cluster is for trying things out: look more often than a production broker does.
LOCAL_INTERVALS_MS = {
    "remote.log.manager.task.interval.ms": 1000,
    "log.retention.check.interval.ms": 1000,
}


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
    configuration of each broker that is made here."""

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
        self._entries = dict(entries or {})

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
        self.start_control_plane()
        self.install_crds()
        storage = self.start_tier()
        if create_cluster:
            self.ensure_cluster(storage)
        self.start_operator()
        self.start_brokers(sorted({*range(1, brokers + 1), *self.layout.broker_ids()}))
        return self.addresses()

    def start_control_plane(self) -> None:
        """Start etcd and kube-apiserver, unless an existing cluster was named."""
        if self.settings.kubeconfig or processes.find(self.layout, "control-plane"):
            return
        plane = ControlPlane.start(self.layout.control_plane, detached=True)
        processes.adopt(self.layout, "control-plane", plane.process.child, {"server": plane.server})
        self._say(f"control plane ready at {plane.server} (process {plane.pid})")

    def install_crds(self) -> None:
        """Apply the CustomResourceDefinitions and wait until they are served."""
        kube = self.kube()
        crds = [custom_resource_definition(kind) for kind in KINDS]
        for crd in crds:
            kube.apply_crd(crd)
        for crd in crds:
            kube.await_served(crd["spec"]["names"]["kind"])
        kube.close()
        self._say(f"{len(crds)} resource definitions installed")

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

    def ensure_cluster(self, storage: dict[str, Any]) -> None:
        """Create the ``Cluster`` object, or leave the one that is there as its owner wants it."""
        kube = self.kube()
        if kube.get("Cluster", self.settings.cluster) is None:
            kube.apply(
                "Cluster",
                self.settings.cluster,
                {
                    "config": {
                        "enable.under.replicated.topic.creation": "true",
                        "remote.log.storage.system.enable": "true",
                    },
                    "remoteStorage": storage,
                },
            )
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
            for record in pool.map(self._spawn_broker, node_ids):
                self._say(
                    f"{record.name} ready at {record.ready['listener']} (process {record.pid})"
                )

    def start_broker(self, node_id: int) -> None:
        """The same for one broker."""
        self.start_brokers([node_id])

    def declare_broker(self, node_id: int) -> None:
        """Its ``Broker`` object, and its configuration if it has none yet."""
        kube = self.kube()
        kube.apply(
            "Broker",
            f"broker-{node_id}",
            {
                "clusterRef": {"name": self.settings.cluster},
                "nodeId": node_id,
                "workload": "External",
            },
        )
        kube.close()
        config = self.layout.broker_config(node_id)
        if not config.exists():
            write_json(config, self._broker_settings(node_id))

    def _spawn_broker(self, node_id: int) -> ProcessRecord:
        name, config = f"broker-{node_id}", self.layout.broker_config(node_id)
        self._await_certificate(node_id)
        return processes.ensure(
            self.layout,
            name,
            [sys.executable, "-m", "tidemark_broker", "--config", str(config)],
            timeout_s=READY_TIMEOUT_S,
        )

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
        order = {"operator": 1, "minio": 2, "control-plane": 3}
        others = [record for record in records if record not in brokers]
        for record in sorted(others, key=lambda record: order.get(record.name, 0)):
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
        return max(self.layout.broker_ids(), default=0) + 1

    def _broker_settings(self, node_id: int) -> dict[str, Any]:
        listener, metrics = free_ports(2)
        return {
            "node.id": node_id,
            "cluster.id": self._await_cluster_id(),
            "log.dir": str(self.layout.broker_data(node_id)),
            "listeners": f"{HOST}:{listener}",
            "controller.addresses": [f"{HOST}:{self.settings.control_port}"],
            "tidemark.tls.directory": str(self.layout.broker_certificates(node_id)),
            "metrics.port": metrics,
            # Everything is on the loopback: what could change packets there can do anything.
            "tidemark.replication.encrypted": False,
            **LOCAL_INTERVALS_MS,
            **self._entries,
        }

    def _await_certificate(self, node_id: int) -> None:
        """The operator issues one as soon as it has seen the Broker."""
        path = self.layout.broker_certificates(node_id) / CERTIFICATE
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not path.exists():
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the operator has not issued a certificate for broker {node_id} in "
                    f"{READY_TIMEOUT_S:.0f} s; see {self.layout.log('operator')}"
                )
            time.sleep(0.05)

    def _await_cluster_id(self) -> str:
        """The id that the operator gave to the Cluster at its first take-over."""
        kube = self.kube()
        deadline = time.monotonic() + READY_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                found = kube.get("Cluster", self.settings.cluster) or {}
                cluster_id = (found.get("status") or {}).get("clusterId")
                if cluster_id:
                    return str(cluster_id)
                time.sleep(0.05)
        finally:
            kube.close()
        raise TimeoutError(
            f"the operator has not taken over clusters.tidemark.dev/{self.settings.cluster} in "
            f"{READY_TIMEOUT_S:.0f} s; see {self.layout.log('operator')}"
        )
