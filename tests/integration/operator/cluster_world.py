"""One namespace with a Cluster, operators, and peers that act as brokers."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.operator_process import OperatorProcess
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EVENT,
    EXPORT,
    PARTITION_SLICE,
    RECORD_DELETION,
    TOPIC,
    USER,
    Json,
    Kind,
)

TIMEOUT_S = 30.0
_numbers = itertools.count(1)


class ClusterWorld:
    """Closes everything that it started."""

    def __init__(self, api: KubeApi, kubeconfig: Path, folder: Path, namespace: str) -> None:
        self.api, self.kubeconfig, self.folder = api, kubeconfig, folder
        self.namespace = namespace
        self.tier = folder / "tier"
        self.certificates = folder / "certificates"
        self.operators: list[OperatorProcess] = []
        self.peers: list[BrokerPeer] = []

    @classmethod
    async def open(cls, kubeconfig: Path, folder: Path) -> Self:
        # Test processes share one API server, so the name has to be unique across them.
        namespace = f"world-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"
        api = await KubeApi.open(KubernetesAccess(kubeconfig))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await api._call("POST", "/api/v1/namespaces", body=body)
        world = cls(api, kubeconfig, folder, namespace)
        world.tier.mkdir()
        return world

    async def close(self) -> None:
        # Peers first: an operator that is killed must not log their disconnections as failures.
        """Stop peers and operators, close the connections."""
        for peer in self.peers:
            await peer.close()
        for operator in self.operators:
            await operator.kill()
        await self.api.close()

    # ------------------------------------------------------------ processes

    def operator(
        self,
        control: str = "127.0.0.1:0",
        *,
        # Two seconds of session: a dead broker is fenced soon, and a busy machine still keeps it
        # alive.
        session_timeout_s: float = 2,
        lease_duration_s: float = 5,
        controller_addresses: str = "",
        export_image: str = "",
        exports: Path | None = None,
        spark_applications: bool = False,
    ) -> OperatorProcess:
        """Return an operator of this namespace that is not started yet."""
        log = self.folder / f"operator-{len(self.operators)}.log"
        made = OperatorProcess(
            self.kubeconfig,
            self.namespace,
            log,
            control,
            session_timeout_s=session_timeout_s,
            certificates=self.certificates,
            lease_duration_s=lease_duration_s,
            controller_addresses=controller_addresses,
            export_image=export_image,
            exports=exports,
            spark_applications=spark_applications,
        )
        self.operators.append(made)
        return made

    async def start_operator(
        self, control: str = "127.0.0.1:0", *, session_timeout_s: float = 2
    ) -> OperatorProcess:
        """Start an operator and wait until it leads."""
        made = self.operator(control, session_timeout_s=session_timeout_s)
        await made.start()
        return made

    async def start_broker(self, node_id: int, operator: OperatorProcess) -> BrokerPeer:
        """Create a Broker object and start a peer; wait until it is unfenced."""
        # A restarted broker finds its object.
        try:
            await self.get(BROKER, f"broker-{node_id}")
        except NotFound:
            await self.create(BROKER, f"broker-{node_id}", nodeId=node_id, workload="External")
        peer = await self.peer(node_id)
        self.peers.append(peer)
        # The controller may still be taking over; the peer repeats its registration.
        await peer.start(operator.control)
        await self.until(lambda: not peer.fenced, f"broker {node_id} is unfenced")
        return peer

    async def peer(self, node_id: int) -> BrokerPeer:
        """Return a peer that is not started yet."""
        return BrokerPeer(node_id, await self.cluster_id(), self.certificates)

    async def start_peer(self, peer: BrokerPeer, operator: OperatorProcess) -> BrokerPeer:
        """Start a peer that the test configured; wait until it is unfenced."""
        self.peers.append(peer)
        await peer.start(operator.control)
        await self.until(lambda: not peer.fenced, f"broker {peer.node_id} is unfenced")
        return peer

    # ------------------------------------------------------------ objects

    async def create_cluster(self, **config: str) -> Json:
        """Create the Cluster, with the folder as its tier."""
        return await self.api.create(
            CLUSTER,
            self.namespace,
            {
                "apiVersion": CLUSTER.api_version,
                "kind": "Cluster",
                "metadata": {"name": "demo"},
                "spec": {
                    "config": {"remote.log.storage.system.enable": "true"} | config,
                    "remoteStorage": {"filesystem": {"path": str(self.tier)}},
                },
            },
        )

    async def create(self, kind: Kind, name: str, **spec: Any) -> Json:
        """Create a Broker, Topic or User of the Cluster."""
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name},
            # Most tests have one Cluster, named demo.
            "spec": {"clusterRef": {"name": "demo"}} | spec,
        }
        return await self.api.create(kind, self.namespace, body)

    async def create_topic(
        self, name: str, partitions: int = 1, replicas: int = 2, **spec: Any
    ) -> Json:
        return await self.create(
            TOPIC, name, partitions=partitions, replicationFactor=replicas, **spec
        )

    async def create_deletion(self, name: str, topic: str, **spec: Any) -> Json:
        body = {
            "apiVersion": RECORD_DELETION.api_version,
            "kind": "RecordDeletion",
            "metadata": {"name": name},
            "spec": {"topicRef": {"name": topic}} | spec,
        }
        return await self.api.create(RECORD_DELETION, self.namespace, body)

    async def get(self, kind: Kind, name: str) -> Json:
        """Return an object; raises NotFound."""
        return await self.api.get(kind, self.namespace, name)

    async def patch(self, kind: Kind, name: str, **spec: Any) -> Json:
        """Change fields of an object's spec."""
        return await self.api.merge_patch(kind, self.namespace, name, {"spec": spec})

    async def annotate(self, kind: Kind, name: str, **annotations: str | None) -> Json:
        """Set annotations; None removes one."""
        change = {"metadata": {"annotations": annotations}}
        return await self.api.merge_patch(kind, self.namespace, name, change)

    async def delete(self, kind: Kind, name: str) -> None:
        """Request a deletion; finalizers may delay it."""
        await self.api.delete(kind, self.namespace, name)

    async def is_deleted(self, kind: Kind, name: str) -> bool:
        """Whether an object does not exist."""
        try:
            await self.get(kind, name)
        except NotFound:
            return True
        return False

    async def exists(self, kind: Kind, name: str) -> bool:
        """Whether an object exists."""
        return not await self.is_deleted(kind, name)

    async def cluster_id(self) -> str:
        # A Cluster has its id once the first controller has taken over.
        """The id that brokers need, once a controller has written it."""
        body = await self.status_where(CLUSTER, "demo", lambda status: "clusterId" in status)
        return str(body["clusterId"])

    async def slices(self) -> list[Json]:
        return await self.api.list_all(PARTITION_SLICE, self.namespace)

    async def rows(self) -> list[str]:
        """Return every row of every slice."""
        return [row for body in await self.slices() for row in body.get("partitions") or []]

    async def versions(self) -> dict[str, str]:
        """Return the resourceVersion of every object; equal twice means no write in between."""
        found: dict[str, str] = {}
        for kind in (CLUSTER, BROKER, TOPIC, RECORD_DELETION, USER, EXPORT, PARTITION_SLICE):
            for body in await self.api.list_all(kind, self.namespace):
                meta = body["metadata"]
                found[f"{kind.kind}/{meta['name']}"] = meta["resourceVersion"]
        return found

    # ------------------------------------------------------------ waiting

    async def until(
        self,
        holds: Callable[[], bool | Awaitable[bool]],
        what: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            if time.monotonic() > deadline:
                # The end of the logs explains most failures.
                tails = "\n".join(operator.log[-3000:] for operator in self.operators)
                raise AssertionError(f"not so in {timeout_s} s: {what}\n{tails}")
            await asyncio.sleep(0.05)

    async def status_where(
        self, kind: Kind, name: str, holds: Callable[[Json], bool], timeout_s: float = TIMEOUT_S
    ) -> Json:
        """Wait until an object's status fulfils a condition; return the status."""
        last: Json = {}

        async def look() -> bool:
            nonlocal last
            try:
                last = (await self.get(kind, name)).get("status") or {}
            except NotFound:
                return False
            return holds(last)

        # Show the last status: a time-out alone would not say how far the object got.
        try:
            await self.until(look, f"{kind.kind} {name}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\nlast status: {last}") from None
        return last

    async def event(self, reason: str) -> str:
        """Wait for an Event, which is written after what it reports; return its note."""
        notes: dict[str, str] = {}

        async def look() -> bool:
            found = await self.api.list_all(EVENT, self.namespace)
            notes.update((item["reason"], item["note"]) for item in found)
            return reason in notes

        await self.until(look, f"an Event {reason}")
        return notes[reason]

    async def condition(
        self, kind: Kind, name: str, type_: str, status: str, reason: str = ""
    ) -> Json:
        """Wait for a condition of this status and reason; return the condition."""

        def holds(found: Json) -> bool:
            item = condition_of(found, type_)
            return item.get("status") == status and reason in ("", item.get("reason"))

        return condition_of(await self.status_where(kind, name, holds), type_)


def condition_of(status: Json, type_: str) -> Json:
    """Return a condition of a status, or {} if it is missing."""
    found = (item for item in status.get("conditions") or [] if item["type"] == type_)
    return next(found, {})
