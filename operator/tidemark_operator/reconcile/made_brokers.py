"""Creation, drain and removal of the Brokers of a Cluster's ``spec.brokers`` and ``spec.readers``.

It also keeps the objects that all brokers in pods share.
"""

import time

from tidemark.reasons import Reason
from tidemark_operator.controller import draining, scaling
from tidemark_operator.controller.scaling import BrokerObject, PlannedBroker
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    DISRUPTION_BUDGET,
    SERVICE,
    Json,
    Key,
    Kind,
    key_of,
)
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.pods.external_services import bootstrap_services
from tidemark_operator.pods.identity import MANAGER
from tidemark_operator.pods.manifests import (
    ClusterObjects,
    broker_manifest,
    cluster_objects,
    is_made,
    matches_manifest,
)
from tidemark_operator.pods.rollout import belongs_to_cluster, owner_text
from tidemark_operator.reconcile.external_listeners import ExternalServices
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.workers import earliest
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.broker_pod import BrokerPod
from tidemark_operator.resources.names import BrokerRole

#: Interval in seconds while brokers are created or leave.
LOOK_AGAIN_S = 3.0
#: Foreign changes are reverted within this time.
CHECK_S = 60.0
#: Retry interval after a refusal, which needs a person.
REFUSED_S = 15.0
#: A hundred brokers with one template are refused for the same reason.
REFUSED_SHOWN = 3


def readers_of(spec: Json) -> Json | None:
    """Return ``spec.readers`` of a Cluster, with the template of its brokers."""
    readers, brokers = spec.get("readers"), spec.get("brokers")
    return None if readers is None or brokers is None else {**brokers, "racks": (), **readers}


class MadeBrokers:
    """Brokers of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._refused: list[str] = []
        self._common: ClusterObjects | None = None
        self._common_until_s = 0.0
        self._external = ExternalServices(services)

    async def keep(self, key: Key, body: Json) -> float | None:
        """Reconcile the Broker objects of a Cluster, and the objects that its brokers share.

        Returns the seconds until the next reconciliation. What the API server refuses is reported
        in the Cluster's status, and does not stop the other steps.
        """
        # Each step below appends its refusals to `_refused`.
        former, self._refused = self._services.state.brokers_problem, []
        spec = body["spec"]
        later_s = await self._scale(key, spec.get("brokers"))
        readers_s = await self._scale(key, readers_of(spec), is_reader=True)
        has_pods = await self._keep_common(body)
        outside_s = await self._keep_external(body)
        problem = "; ".join(self._refused[:REFUSED_SHOWN])
        self._services.state.brokers_problem = problem
        if problem:
            # A problem is news once, and shown until it is over.
            if problem != former:
                event = warning(CLUSTER.kind, key.namespaced_name, Reason.BROKERS_REFUSED, problem)
                self._services.events.emit(event)
            return REFUSED_S
        common_s = CHECK_S if has_pods else None
        return earliest(later_s, readers_s, common_s, outside_s)

    async def remove(self, key: Key) -> None:
        """Delete the Brokers that were created for a Cluster that is being deleted.

        No Topic needs brokers any more.
        """
        for body in self._brokers(key):
            if is_made(body, key.name) and not body["metadata"].get("deletionTimestamp"):
                await self._delete(body)

    # ------------------------------------------------------------ the number

    async def _scale(self, key: Key, spec: Json | None, *, is_reader: bool = False) -> float | None:
        """Create, change and delete Broker objects as ``spec`` of one pool requires.

        Returns the seconds until the next check while surplus brokers are drained, else None.
        """
        if spec is None:
            return None
        bodies = {key_of(body).name: body for body in self._brokers(key)}
        members = [self._member(body, key.name) for body in bodies.values()]
        found = scaling.scale(
            int(spec["replicas"]), spec.get("racks") or (), members, is_reader=is_reader
        )
        # Additions and changes first: a replacement serves before its predecessor is deleted.
        for placed in found.desired:
            await self._write(key, bodies.get(placed.name), placed, spec["template"])
        for name in found.removed:
            await self._delete(bodies[name])
        return LOOK_AGAIN_S if found.is_leaving else None

    def _member(self, body: Json, cluster: str) -> BrokerObject:
        """Return the facts about a Broker object that scaling decides from."""
        services, spec = self._services, body["spec"]
        node_id, key = int(spec["nodeId"]), key_of(body)
        # None: the Broker is not in the state yet.
        known = services.state.brokers.get(node_id)
        # Until all brokers have reported, the PartitionSlices may lack replicas of this broker.
        is_drained = (
            known is not None
            and known.key == key.namespaced_name
            and known.leaving
            and services.first_reports.are_complete
            and not draining.progress(Draft(services.state), node_id).remaining
        )
        return BrokerObject(
            node_id=node_id,
            name=key.name,
            rack=spec.get("rack"),
            made=is_made(body, cluster),
            deleting=bool(body["metadata"].get("deletionTimestamp")),
            drained=is_drained,
            is_reader=spec.get("role") == BrokerRole.READER,
        )

    async def _write(
        self, key: Key, body: Json | None, placed: PlannedBroker, template: Json
    ) -> None:
        """Apply the Broker object of a planned broker, unless the existing one already matches.

        ``body`` is the existing object, None without one. ``template`` is the pod of the pool.
        """
        manifest = broker_manifest(placed, template, key.name, key.namespace)
        if body is not None and matches_manifest(body, manifest):
            return
        services = self._services
        written = await self._apply(BROKER, manifest, force=body is not None)
        if written is None:
            return
        services.objects.put(written)
        # The store has it now, so its watch event will not queue it.
        services.queue.add(BROKER.key(f"{key.namespace}/{placed.name}"))
        if body is None:
            self._emit(key, "BrokerMade", f"Broker {placed.name}, node id {placed.node_id}")

    async def _delete(self, body: Json) -> None:
        services, key = self._services, key_of(body)
        await services.client.delete(BROKER, key, uid=str(body["metadata"]["uid"]))
        services.queue.add(key)
        self._emit(services.cluster_key, "BrokerRemoved", f"Broker {key.name} is not needed")

    def _emit(self, key: Key, reason: str, text: str) -> None:
        self._services.events.emit(normal(CLUSTER.kind, key.namespaced_name, reason, text))

    # ------------------------------------------------------------ shared objects

    async def _keep_common(self, body: Json) -> bool:
        """Apply the bootstrap Service and the PodDisruptionBudget.

        Return whether brokers have pods.
        """
        key, pods = key_of(body), self._pods(body)
        if not pods:
            return False
        desired = cluster_objects(key.name, key.namespace, str(body["metadata"]["uid"]), pods)
        now_s = time.monotonic()
        # Without a change of the desired objects, edits by others are reverted every CHECK_S
        # seconds.
        if desired == self._common and now_s < self._common_until_s:
            return True
        # Only success is remembered: a refused object is tried in the next step.
        self._common = None
        service = await self._bootstrap(desired.bootstrap)
        if await self._apply(DISRUPTION_BUDGET, desired.budget) is not None and service is not None:
            self._common, self._common_until_s = desired, now_s + CHECK_S
        return True

    async def _bootstrap(self, desired: Json) -> Json | None:
        """Apply the bootstrap Service of the cluster, reverting changes of other writers.

        Returns the Service. Returns None if the name belongs to another owner, or if the API server
        refused; both are added to the Cluster's reported problems.
        """
        name = desired["metadata"]["name"]
        try:
            live = await self._services.named(SERVICE, name)
        except REFUSALS as error:
            self._refused.append(f"Service {name}: {error.server_message}")
            return None
        if live is not None and not belongs_to_cluster(live, desired):
            self._refused.append(f"Service {name} belongs to {owner_text(live)}. Delete it")
            return None
        # `force` takes over fields that other managers own; a new object has none.
        return await self._apply(SERVICE, desired, force=live is not None)

    async def _keep_external(self, body: Json) -> float | None:
        """Keep the bootstrap Services for external clients; return the seconds until the next
        look.
        """
        key, uid = key_of(body), str(body["metadata"]["uid"])
        desired = bootstrap_services(key.name, key.namespace, uid, self._pods(body))
        return await self._external.keep_bootstraps(body, desired)

    def _pods(self, body: Json) -> list[BrokerPod]:
        """Return the pod settings of all brokers in pods."""
        bodies = [body for body in self._brokers(key_of(body)) if body["spec"].get("pod")]
        read = [Broker.parse(Broker.known_part(broker)).spec.pod for broker in bodies]
        return [pod for pod in read if pod is not None]

    async def _apply(self, kind: Kind, body: Json, *, force: bool = False) -> Json | None:
        """Apply an object; None if it was refused, which is reported."""
        try:
            return await self._services.client.api.apply(kind, body, manager=MANAGER, force=force)
        except REFUSALS as error:
            self._refused.append(f"{kind.kind} {body['metadata']['name']}: {error.server_message}")
            return None

    def _brokers(self, key: Key) -> list[Json]:
        brokers = self._services.objects.of_kind(BROKER)
        return [body for body in brokers if cluster_of(body) == key.name]
