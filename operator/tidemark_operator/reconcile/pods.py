"""Keeps the pods of Brokers with ``workload: Pod``: applies what they come to, one restart at a
time.

What makes no other pod is applied at once. What does waits for the broker's turn
(:mod:`~tidemark_operator.controller.restarts`), configuration and all, so that a pod that restarts
by itself meanwhile is the same one; whether it does is asked of the API server by an apply that
writes nothing. Pods are never touched: their StatefulSet replaces them. One Broker is looked at at
a time, or two of them could see that nobody restarts.
"""

import asyncio
import dataclasses
import time

from tidemark_operator.controller import restarts
from tidemark_operator.controller.events import normal
from tidemark_operator.controller.model import NO_EPOCH
from tidemark_operator.controller.pod_state import Hold, PodState
from tidemark_operator.kube.errors import FieldConflict, Forbidden, Invalid
from tidemark_operator.kube.kinds import (
    BROKER,
    CONFIG_MAP,
    SERVICE,
    STATEFUL_SET,
    VOLUME_CLAIM,
    Json,
    Kind,
    key_of,
)
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.pods.identity import PodBroker, cluster_labels, selector_text
from tidemark_operator.pods.manifests import BrokerObjects, broker_objects
from tidemark_operator.pods.rollout import is_complete, replaces_pod
from tidemark_operator.reconcile.services import Services
from tidemark_operator.resources.broker import Broker, parse_broker

MANAGER = "tidemark-operator-pods"
#: While a pod is being made, or waits for its turn.
LOOK_AGAIN_S = 3.0
#: What somebody else has changed is set back within this time.
CHECK_S = 60.0
#: What the API server refuses waits for a person.
REFUSED_S = 15.0
_REFUSALS = (Forbidden, Invalid, FieldConflict)

NO_ADDRESSES = (
    "the operator was not told under which addresses brokers reach it: start it with "
    "--controller-addresses"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """What was applied for a Broker, all of it, and until when that is taken for true (monotonic
    seconds)."""

    objects: BrokerObjects
    until_s: float


class PodKeeper:
    """Of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turn = asyncio.Lock()
        self._kept: dict[str, _Kept] = {}
        #: Of brokers whose pods were replaced, the broker epoch until then: one that has it still
        #: has not come back, however ready its pod is, and however alive it seems.
        self._replaced: dict[str, int] = {}

    async def keep(self, body: Json) -> float | None:
        """See to one Broker's pod; when to look again, in seconds."""
        if not body["spec"].get("pod"):
            return None
        broker = parse_broker(body)
        pod, node_id = broker.spec.pod, broker.spec.node_id
        if pod is None:
            return None
        services, name = self._services, broker.metadata.name
        if not services.controller_addresses:
            services.state.pods[node_id] = PodState(name=f"{name}-0", missing=NO_ADDRESSES)
            return None
        wanted = broker_objects(pod, self._identity(broker))
        kept, now_s = self._kept.get(name), time.monotonic()
        if kept is not None and kept.objects == wanted and now_s < kept.until_s:
            return kept.until_s - now_s
        self._kept.pop(name, None)
        async with self._turn:
            found = await self._look(broker, wanted)
        services.state.pods[node_id] = found
        if found.hold is not None or found.restarting:
            return LOOK_AGAIN_S
        if found.refused or found.volume:
            return REFUSED_S
        self._kept[name] = _Kept(wanted, time.monotonic() + CHECK_S)
        return CHECK_S

    def forget(self, name: str) -> None:
        """The Broker is gone."""
        self._kept.pop(name, None)
        self._replaced.pop(name, None)

    def _identity(self, broker: Broker) -> PodBroker:
        return PodBroker(
            name=broker.metadata.name,
            namespace=broker.metadata.namespace,
            uid=str(broker.metadata.uid),
            node_id=broker.spec.node_id,
            rack=broker.spec.rack,
            cluster=broker.spec.cluster_ref.name,
            controllers=self._services.controller_addresses,
        )

    async def _look(self, broker: Broker, wanted: BrokerObjects) -> PodState:
        """Apply what may be; what came of it."""
        name, volume = f"{broker.metadata.name}-0", ""
        try:
            await self._apply(VOLUME_CLAIM, wanted.claim, force=True)
        except _REFUSALS as error:  # the pod goes on with the volume that it has
            volume = f"claim {wanted.claim['metadata']['name']}: {error.said}"
        try:
            return await self._pod(broker, wanted, PodState(name=name, volume=volume))
        except _REFUSALS as error:
            return PodState(name=name, volume=volume, refused=error.said)

    async def _pod(self, broker: Broker, wanted: BrokerObjects, seen: PodState) -> PodState:
        services = self._services
        sets = await self._stateful_sets()
        live = sets.pop(broker.metadata.name, None)
        # What was there under these names, and is not ours, is not taken over.
        ours = live is not None
        await self._apply(SERVICE, wanted.service, force=ours)
        if live is not None:
            new = await self._apply(STATEFUL_SET, wanted.stateful_set, force=True, dry_run=True)
            if replaces_pod(live, new):
                held = self._hold(broker.spec.node_id, sets)
                if held is not None:
                    return dataclasses.replace(seen, hold=held)
                text = f"pod {seen.name} is replaced: it is to be another one"
                services.events.emit(normal(BROKER.kind, broker.metadata.key, "PodReplaced", text))
                self._replaced[broker.metadata.name] = self._epoch(broker.spec.node_id)
        await self._apply(CONFIG_MAP, wanted.config_map, force=ours)
        written = await self._apply(STATEFUL_SET, wanted.stateful_set, force=ours)
        return dataclasses.replace(seen, restarting=not is_complete(written))

    def _hold(self, node_id: int, sets: dict[str, Json]) -> Hold | None:
        """``sets``: the StatefulSets of other Brokers. A new operator has yet to hear of all; one
        whose Lease has ended may be followed by one that restarts another broker."""
        services, names = self._services, self._pod_brokers()
        if not (services.leads() and services.first_reports.are_in):
            return Hold(unreached=True)
        others = {other for name, other in names.items() if other != node_id}
        starting = {
            names[name]
            for name, each in sets.items()
            if name in names and not (is_complete(each) and self._is_back(name, names[name]))
        }
        return restarts.hold(services.state, node_id, others, starting)

    def _is_back(self, name: str, node_id: int) -> bool:
        if self._replaced.get(name) == self._epoch(node_id):
            return False
        self._replaced.pop(name, None)
        return True

    def _epoch(self, node_id: int) -> int:
        broker = self._services.state.brokers.get(node_id)
        return NO_EPOCH if broker is None else broker.broker_epoch

    def _pod_brokers(self) -> dict[str, int]:
        """Name -> node id of each Broker in a pod."""
        services, name = self._services, self._services.cluster_key.name
        return {
            key_of(body).name: int(body["spec"]["nodeId"])
            for body in services.objects.of_kind(BROKER)
            if body["spec"].get("pod") and cluster_of(body) == name
        }

    async def _stateful_sets(self) -> dict[str, Json]:
        services = self._services
        key = services.cluster_key
        selector = selector_text(cluster_labels(key.name))
        found = await services.client.api.list_all(
            STATEFUL_SET, key.namespace, label_selector=selector
        )
        return {str(each["metadata"]["name"]): each for each in found}

    async def _apply(self, kind: Kind, body: Json, *, force: bool, dry_run: bool = False) -> Json:
        meta = body["metadata"]
        return await self._services.client.api.apply(
            kind,
            meta["namespace"],
            meta["name"],
            body,
            manager=MANAGER,
            force=force,
            dry_run=dry_run,
        )
