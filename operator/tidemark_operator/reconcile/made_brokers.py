"""Makes, drains and removes the Brokers of a Cluster's ``spec.brokers``, and keeps what all brokers
in pods have in common."""

import time

from tidemark.reasons import Reason
from tidemark_operator.controller import draining, scaling
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import normal, warning
from tidemark_operator.controller.scaling import Member, Placed
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
from tidemark_operator.pods.made_brokers import broker_manifest, is_as_wanted, is_made
from tidemark_operator.pods.manifests import ClusterObjects, cluster_objects
from tidemark_operator.pods.rollout import is_ours_of_cluster, whose
from tidemark_operator.reconcile.external_listeners import ExternalServices
from tidemark_operator.reconcile.services import Services
from tidemark_operator.resources.broker import Broker, parse_broker
from tidemark_operator.resources.broker_pod import BrokerPod

#: While brokers are made or leave.
LOOK_AGAIN_S = 3.0
#: What somebody else has changed is set back within this time.
CHECK_S = 60.0
#: What the API server refuses waits for a person.
REFUSED_S = 15.0
#: Of a hundred brokers with one template all are refused for the same.
REFUSED_SHOWN = 3


class MadeBrokers:
    """Of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._refused: list[str] = []
        self._common: ClusterObjects | None = None
        self._common_until_s = 0.0
        self._external = ExternalServices(services)

    async def keep(self, key: Key, body: Json) -> float | None:
        """One step of a Cluster that stays; when to look again, in seconds. What the API server
        refuses is told in the Cluster's status, and is no reason to leave out the rest."""
        former, self._refused = self._services.state.brokers_problem, []
        later_s = await self._scale(key, body["spec"].get("brokers"))
        has_pods = await self._keep_common(body)
        outside_s = await self._keep_external(body)
        problem = "; ".join(self._refused[:REFUSED_SHOWN])
        self._services.state.brokers_problem = problem
        if problem:
            if problem != former:
                event = warning(CLUSTER.kind, key.namespaced_name, Reason.BROKERS_REFUSED, problem)
                self._services.events.emit(event)
            return REFUSED_S
        common_s = CHECK_S if has_pods else None
        return min((s for s in (later_s, common_s, outside_s) if s is not None), default=None)

    async def remove(self, key: Key) -> None:
        """The Cluster goes, and no Topic needs brokers any more: neither do those stay that were
        made for it."""
        for body in self._brokers(key):
            if is_made(body, key.name) and not body["metadata"].get("deletionTimestamp"):
                await self._delete(body)

    # ------------------------------------------------------------ the number

    async def _scale(self, key: Key, wanted: Json | None) -> float | None:
        if wanted is None:
            return None
        bodies = {key_of(each).name: each for each in self._brokers(key)}
        members = [self._member(each, key.name) for each in bodies.values()]
        found = scaling.scale(int(wanted["replicas"]), wanted.get("racks") or (), members)
        for placed in found.wanted:
            await self._write(key, bodies.get(placed.name), placed, wanted["template"])
        for name in found.removed:
            await self._delete(bodies[name])
        return LOOK_AGAIN_S if found.is_leaving else None

    def _member(self, body: Json, cluster: str) -> Member:
        services, spec = self._services, body["spec"]
        node_id, key = int(spec["nodeId"]), key_of(body)
        known = services.state.brokers.get(node_id)
        is_drained = (
            known is not None
            and known.key == key.namespaced_name
            and known.leaving
            and services.first_reports.are_in
            and not draining.progress(Draft(services.state), node_id).remaining
        )
        return Member(
            node_id=node_id,
            name=key.name,
            rack=spec.get("rack"),
            made=is_made(body, cluster),
            deleting=bool(body["metadata"].get("deletionTimestamp")),
            drained=is_drained,
        )

    async def _write(self, key: Key, body: Json | None, placed: Placed, template: Json) -> None:
        manifest = broker_manifest(placed, template, key.name, key.namespace)
        if body is not None and is_as_wanted(body, manifest):
            return
        services = self._services
        written = await self._apply(BROKER, manifest, force=body is not None)
        if written is None:
            return
        services.objects.put(written)
        # What is known already is no news when the watch brings it.
        services.queue.add(BROKER.key(f"{key.namespace}/{placed.name}"))
        if body is None:
            self._tell(key, "BrokerMade", f"Broker {placed.name}, node id {placed.node_id}")

    async def _delete(self, body: Json) -> None:
        services, key = self._services, key_of(body)
        await services.client.delete(BROKER, key, uid=str(body["metadata"]["uid"]))
        services.queue.add(key)
        self._tell(services.cluster_key, "BrokerRemoved", f"Broker {key.name} is not needed")

    def _tell(self, key: Key, reason: str, text: str) -> None:
        self._services.events.emit(normal(CLUSTER.kind, key.namespaced_name, reason, text))

    # ------------------------------------------------------------ what they have in common

    async def _keep_common(self, body: Json) -> bool:
        """Service and budget, if there are brokers in pods; whether there are any."""
        key, pods = key_of(body), self._pods(body)
        if not pods:
            return False
        wanted = cluster_objects(key.name, key.namespace, str(body["metadata"]["uid"]), pods)
        now_s = time.monotonic()
        if wanted == self._common and now_s < self._common_until_s:
            return True
        self._common = None
        service = await self._bootstrap(wanted.bootstrap)
        if await self._apply(DISRUPTION_BUDGET, wanted.budget) is not None and service is not None:
            self._common, self._common_until_s = wanted, now_s + CHECK_S
        return True

    async def _bootstrap(self, wanted: Json) -> Json | None:
        """The Service to begin with; what somebody has changed in ours is set back. None: it is
        somebody else's, or refused, and is told."""
        name = wanted["metadata"]["name"]
        try:
            live = await self._services.named(SERVICE, name)
        except REFUSALS as error:
            self._refused.append(f"Service {name}: {error.said}")
            return None
        if live is not None and not is_ours_of_cluster(live, wanted):
            self._refused.append(f"Service {name} belongs to {whose(live)}. Delete it")
            return None
        return await self._apply(SERVICE, wanted, force=live is not None)

    async def _keep_external(self, body: Json) -> float | None:
        """The Services by which clients from outside begin; when to look again."""
        key, uid = key_of(body), str(body["metadata"]["uid"])
        wanted = bootstrap_services(key.name, key.namespace, uid, self._pods(body))
        return await self._external.keep_bootstraps(body, wanted)

    def _pods(self, body: Json) -> list[BrokerPod]:
        """Of all brokers in pods."""
        bodies = [each for each in self._brokers(key_of(body)) if each["spec"].get("pod")]
        read = [parse_broker(Broker.known_part(each)).spec.pod for each in bodies]
        return [pod for pod in read if pod is not None]

    async def _apply(self, kind: Kind, body: Json, *, force: bool = False) -> Json | None:
        """None: it was refused, and is told."""
        meta = body["metadata"]
        try:
            return await self._services.client.api.apply(
                kind, meta["namespace"], meta["name"], body, manager=MANAGER, force=force
            )
        except REFUSALS as error:
            self._refused.append(f"{kind.kind} {meta['name']}: {error.said}")
            return None

    def _brokers(self, key: Key) -> list[Json]:
        return [
            each for each in self._services.objects.of_kind(BROKER) if cluster_of(each) == key.name
        ]
