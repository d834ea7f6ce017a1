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
from collections.abc import Callable, Iterable

from tidemark_operator.controller import restarts
from tidemark_operator.controller.events import normal
from tidemark_operator.controller.model import NO_EPOCH
from tidemark_operator.controller.pod_state import Hold, PodState
from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import (
    BROKER,
    CONFIG_MAP,
    SERVICE,
    STATEFUL_SET,
    Json,
    Kind,
    key_of,
)
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, offered_secret
from tidemark_operator.kube.warnings import last_warning, why_stuck
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.pods.identity import MANAGER, identity_of
from tidemark_operator.pods.manifests import BrokerObjects, broker_objects
from tidemark_operator.pods.rollout import (
    is_complete,
    is_ours,
    is_unmade,
    other_managers,
    replaces_pod,
    whose,
)
from tidemark_operator.reconcile.services import Services
from tidemark_operator.reconcile.volumes import VolumeKeeper
from tidemark_operator.resources.broker import Broker, parse_broker
from tidemark_operator.resources.references import secret_names

#: While a pod is being made, or waits for its turn.
LOOK_AGAIN_S = 3.0
#: What somebody else has changed is set back within this time.
CHECK_S = 60.0
#: What the API server refuses waits for a person.
REFUSED_S = 15.0
_RENAME = "Delete it, or create this Broker under another name"

NO_ADDRESSES = "the operator's address for brokers is unknown. Start it with --controller-addresses"


@dataclasses.dataclass(frozen=True, slots=True)
class _Looked:
    """What was wanted when a Broker's objects were last looked at, all of them, and until when that
    need not be done again (monotonic seconds)."""

    objects: BrokerObjects
    until_s: float


class PodKeeper:
    """Of one term. ``clock``: monotonic seconds."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock
        self._volumes = VolumeKeeper(services)
        self._turn = asyncio.Lock()
        self._looked: dict[str, _Looked] = {}
        #: Of brokers whose pods were replaced, the broker epoch until then: one that has it still
        #: has not come back, however ready its pod is, and however alive it seems.
        self._replaced: dict[str, int] = {}
        #: The namespace's StatefulSets by name, as last listed, for all whose pods are being made.
        self._listed: dict[str, Json] = {}
        self._listed_until_s = 0.0

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
        wanted = broker_objects(pod, identity_of(broker, services.controller_addresses))
        found = self._waits(name, node_id, wanted)
        if found is None:
            async with self._turn:
                found = await self._look(broker, wanted)
        services.state.pods[node_id] = found
        if found.hold is not None or found.restarting:
            return LOOK_AGAIN_S
        if found.refused or found.volume:
            self._looked.pop(name, None)
            return REFUSED_S
        return self._looked[name].until_s - self._clock()

    def _last(self, name: str, node_id: int, wanted: BrokerObjects) -> PodState | None:
        """What the last look found, while that holds."""
        looked = self._looked.get(name)
        if looked is None or looked.objects != wanted or self._clock() >= looked.until_s:
            return None
        return self._services.state.pods.get(node_id)

    def _waits(self, name: str, node_id: int, wanted: BrokerObjects) -> PodState | None:
        """How it stands, if that is known without a call: all is well, or another turn is not over.
        Brokers that wait are many, and come every few seconds. None: look."""
        last = self._last(name, node_id, wanted)
        if last is None or last.restarting:
            return None
        if last.hold is None:
            return last
        held = self._hold(node_id, self._seen_starting(node_id))
        return None if held is None else dataclasses.replace(last, hold=held)

    def forget(self, name: str) -> None:
        """The Broker is gone."""
        self._looked.pop(name, None)
        self._replaced.pop(name, None)

    async def _look(self, broker: Broker, wanted: BrokerObjects) -> PodState:
        """Apply what may be; what came of it. Of a pod that was being made before only that is
        asked, with one list for all of them."""
        name = broker.metadata.name
        last = self._last(name, broker.spec.node_id, wanted)
        if last is not None and last.restarting:
            if self._clock() >= self._listed_until_s:
                await self._list()
            live = self._listed.get(name)
            if live is not None and (last.why or not is_unmade(live)):
                return dataclasses.replace(last, restarting=not is_complete(live))
        self._looked.pop(name, None)
        found = await self._applied(broker, wanted)
        pause_s = REFUSED_S if found.volume or found.why else CHECK_S
        self._looked[name] = _Looked(wanted, self._clock() + pause_s)
        return found

    async def _applied(self, broker: Broker, wanted: BrokerObjects) -> PodState:
        seen = PodState(name=f"{broker.metadata.name}-0")
        try:
            # A running pod keeps its Secrets: only changes wait for the owner of the Secret.
            for secret in sorted(secret_names(broker.spec.pod)):
                await self._offered(secret)
            live = await self._services.named(STATEFUL_SET, broker.metadata.name)
            # What was there under these names, and is not ours, is not taken over.
            theirs = await self._theirs(live, wanted)
            if theirs:
                return dataclasses.replace(seen, refused=theirs)
            seen = await self._volumes.keep(wanted.claim, seen)
            return await self._pod(broker, wanted, live, seen)
        except SecretProblem as error:
            return dataclasses.replace(seen, refused=str(error))
        except REFUSALS as error:
            return dataclasses.replace(seen, refused=error.said)

    async def _offered(self, secret: str) -> None:
        services = self._services
        namespace = services.cluster_key.namespace
        await offered_secret(services.client.api, namespace, secret, OfferedTo.CLUSTER)

    async def _pod(
        self, broker: Broker, wanted: BrokerObjects, live: Json | None, seen: PodState
    ) -> PodState:
        services, name, node_id = self._services, broker.metadata.name, broker.spec.node_id
        ours = live is not None
        await self._apply(SERVICE, wanted.service, force=True)
        changes = False
        if live is not None:
            new = await self._apply(STATEFUL_SET, wanted.stateful_set, force=True, dry_run=True)
            changes = replaces_pod(live, new)
        if changes:
            await self._list()
            held = self._hold(node_id, self._starting(node_id))
            if held is not None:
                return dataclasses.replace(seen, hold=held)
        await self._apply(CONFIG_MAP, wanted.config_map, force=ours)
        if changes and not services.leads():  # it has had its time to be lost
            return dataclasses.replace(seen, hold=Hold(unreached=True))
        before = self._replaced.get(name)
        if changes:
            self._replaced[name] = self._epoch(node_id)
        try:
            self._listed_until_s = 0.0
            written = await self._apply(STATEFUL_SET, wanted.stateful_set, force=ours)
        except REFUSALS:  # nothing was written, so nobody has to come back
            if before is None:
                self._replaced.pop(name, None)
            else:
                self._replaced[name] = before
            raise
        if changes:
            text = f"pod {seen.name} is outdated and being replaced"
            services.events.emit(normal(BROKER.kind, broker.metadata.key, "PodReplaced", text))
        if is_complete(written):
            return seen
        why = seen.why or await self._why(seen.name, written)
        return dataclasses.replace(seen, restarting=True, why=why)

    async def _why(self, pod: str, stateful_set: Json) -> str:
        """Why there is no pod, or none that is ready, as far as Events say."""
        services = self._services
        api, namespace = services.client.api, services.cluster_key.namespace
        if is_unmade(stateful_set):
            name = stateful_set["metadata"]["name"]
            said = await last_warning(api, namespace, STATEFUL_SET, name)
            return said and f"is not created: {said}"
        said = await why_stuck(api, namespace, pod)
        return said and f"is not ready: {said}"

    async def _theirs(self, live: Json | None, wanted: BrokerObjects) -> str:
        """Whose the objects of these names are, if not this Broker's. An apply without force would
        join an object whose fields do not contradict, and have it deleted with the Broker."""
        if live is not None:
            if is_ours(live, wanted.stateful_set):
                return ""
            return f"StatefulSet {live['metadata']['name']} was not created for it. {_RENAME}"
        foreign = await self._volumes.foreign(wanted.claim)
        if foreign:
            return foreign
        name = wanted.service["metadata"]["name"]
        service = await self._services.named(SERVICE, name)
        if service is not None and not is_ours(service, wanted.service):
            return f"Service {name} belongs to {whose(service)}. {_RENAME}"
        others = other_managers(
            await self._apply(CONFIG_MAP, wanted.config_map, force=False, dry_run=True)
        )
        return f"ConfigMap {name} belongs to {', '.join(others)}. {_RENAME}" if others else ""

    def _hold(self, node_id: int, starting: Iterable[int]) -> Hold | None:
        """``starting``: other brokers whose pods are on their way. A new operator has yet to hear
        of all; one whose Lease has ended may be followed by one that restarts another broker."""
        services = self._services
        if not (services.leads() and services.first_reports.are_in):
            return Hold(unreached=True)
        others = {other for other in self._pod_brokers().values() if other != node_id}
        return restarts.hold(services.state, node_id, others, set(starting))

    def _starting(self, node_id: int) -> Iterable[int]:
        """By the StatefulSets that were just listed, of whatever labels."""
        for name, other in self._pod_brokers().items():
            live = self._listed.get(name)
            if other == node_id or live is None:
                continue
            if not (is_complete(live) and self._is_back(name, other)):
                yield other

    def _seen_starting(self, node_id: int) -> Iterable[int]:
        """By what was seen of each of them last."""
        for name, other in self._pod_brokers().items():
            if other != node_id:
                seen = self._services.state.pods.get(other)
                if (seen is not None and seen.restarting) or not self._is_back(name, other):
                    yield other

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

    async def _list(self) -> None:
        services = self._services
        found = await services.client.api.list_all(STATEFUL_SET, services.cluster_key.namespace)
        self._listed = {str(each["metadata"]["name"]): each for each in found}
        self._listed_until_s = self._clock() + LOOK_AGAIN_S

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
