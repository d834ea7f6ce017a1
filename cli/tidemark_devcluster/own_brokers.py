"""Tidemark brokers of a local cluster.

Each is declared as a Broker object, gets a certificate from the operator, and runs as a process
with a settings file.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tidemark_devcluster import processes
from tidemark_devcluster.layout import Layout, write_json
from tidemark_devcluster.ports import HOST, free_ports
from tidemark_devcluster.processes import ProcessRecord
from tidemark_devcluster.settings import LocalClusterSettings
from tidemark_kube.client import KubeClient

READY_TIMEOUT_S = 60.0
STARTS_AT_ONCE = 4
#: Shorter than in production, so that effects are visible within seconds.
LOCAL_INTERVALS_MS = {
    "remote.log.manager.task.interval.ms": 1000,
    "log.retention.check.interval.ms": 1000,
}


class LocalOwnBrokers:
    """Tidemark brokers of one folder.

    ``entries`` are added to the configuration of each broker that is created here.
    """

    def __init__(
        self,
        layout: Layout,
        settings: LocalClusterSettings,
        kubeconfig: Path,
        entries: Mapping[str, str],
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._kubeconfig = kubeconfig
        self._entries = dict(entries)

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers that were ever added to the folder, ascending."""
        return self._layout.broker_ids()

    def declare_broker(self, node_id: int, *, role: str | None = None) -> None:
        """Prepare a broker's first start: apply its ``Broker`` object and write its settings file.

        An existing settings file stays, as it contains the broker's ports, and an existing object
        keeps its role.
        """
        cluster, name = {"name": self._settings.cluster}, f"broker-{node_id}"
        spec = {"clusterRef": cluster, "nodeId": node_id, "workload": "External"}
        with self._kube() as kube:
            known = kube.get("Broker", name) or {"spec": {}}
            role = known["spec"].get("role", role)
            kube.apply("Broker", name, {**spec, **({"role": role} if role else {})})
        config = self._layout.broker_config(node_id)
        if not config.exists():
            write_json(config, self._broker_settings(node_id))

    def start(self, node_ids: Iterable[int]) -> Iterator[ProcessRecord]:
        """Start declared brokers in parallel, and yield each once it is registered and unfenced."""
        with ThreadPoolExecutor(max_workers=STARTS_AT_ONCE) as pool:
            yield from pool.map(self._start, node_ids)

    def _start(self, node_id: int) -> ProcessRecord:
        config = self._layout.broker_config(node_id)
        self._await_certificate(node_id)
        return processes.ensure(
            self._layout,
            f"broker-{node_id}",
            [sys.executable, "-m", "tidemark_broker", "--config", str(config)],
            timeout_s=READY_TIMEOUT_S,
        )

    def _kube(self) -> KubeClient:
        return KubeClient(self._kubeconfig, self._settings.namespace)

    def _broker_settings(self, node_id: int) -> dict[str, Any]:
        """Return the settings file of a new broker, with free ports.

        Waits until the operator has assigned the cluster ID.
        """
        listener, metrics = free_ports(2)
        return {
            "node.id": node_id,
            "cluster.id": self._await_cluster_id(),
            "log.dir": str(self._layout.broker_data(node_id)),
            "listeners": f"{HOST}:{listener}",
            "controller.addresses": [f"{HOST}:{self._settings.control_port}"],
            "tidemark.tls.directory": str(self._layout.broker_certificates(node_id)),
            "metrics.port": metrics,
            # Replication stays on the loopback interface. A process that could read its traffic has
            # full access anyway.
            "tidemark.replication.encrypted": False,
            **LOCAL_INTERVALS_MS,
            **self._entries,
        }

    def _await_certificate(self, node_id: int) -> None:
        """Wait for the certificate, which the operator issues once it has seen the Broker."""
        from tidemark.tls.files import CERTIFICATE  # the ssl module takes a tenth of a start

        path = self._layout.broker_certificates(node_id) / CERTIFICATE
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not path.exists():
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the operator has not issued a certificate for broker {node_id} in "
                    f"{READY_TIMEOUT_S:.0f} s; see {self._layout.log('operator')}"
                )
            time.sleep(0.05)

    def _await_cluster_id(self) -> str:
        """Wait until the operator has assigned the cluster ID, and return it.

        The operator does so when it first reconciles the Cluster. Raises TimeoutError.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        with self._kube() as kube:
            # The Cluster may not exist yet, or have no status.
            while time.monotonic() < deadline:
                cluster = kube.get("Cluster", self._settings.cluster) or {}
                cluster_id = (cluster.get("status") or {}).get("clusterId")
                if cluster_id:
                    return str(cluster_id)
                time.sleep(0.05)
        raise TimeoutError(
            f"the operator has not reconciled clusters.tidemark.dev/{self._settings.cluster} in "
            f"{READY_TIMEOUT_S:.0f} s; see {self._layout.log('operator')}"
        )
