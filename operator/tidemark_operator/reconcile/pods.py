"""Pods of Brokers with ``workload: Pod``: apply their objects, one restart at a time.

A change that does not replace the pod is applied at once. A change that does waits for the broker's
turn (:mod:`~tidemark_operator.controller.restarts`), including its configuration, so that a
pod that restarts by itself meanwhile is unchanged. A dry-run apply shows whether the API server
would replace the pod. Pods are never touched: their StatefulSet replaces them. One Broker is
handled at a time, otherwise two of them could both see that no other restarts.

A pod continues with its volume if another size of the claim is refused. Only Events explain the
problem of a claim: StorageClasses cannot be read from within a namespace.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable

from tidemark_operator.controller import restarts
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import NO_EPOCH, Hold, PodState
from tidemark_operator.kube.errors import REFUSALS
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
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, offered_secret
from tidemark_operator.kube.warnings import last_warning, why_stuck
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.pods.identity import MANAGER, identity_of
from tidemark_operator.pods.manifests import BrokerObjects, broker_objects
from tidemark_operator.pods.rollout import (
    belongs_to_broker,
    claim_matches,
    foreign_claim,
    has_no_pod,
    is_complete,
    is_pending,
    other_managers,
    owner_text,
    replaces_pod,
    why_pending,
)
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.references import secret_names

#: Interval in seconds while a pod is being created, or waits for its turn.
LOOK_AGAIN_S = 3.0
#: Foreign changes are reverted within this time.
CHECK_S = 60.0
#: Retry interval after a refusal, which needs a person.
REFUSED_S = 15.0
_RENAME = "Delete it, or create this Broker under another name"

NO_ADDRESSES = "the operator's address for brokers is unknown. Start it with --controller-addresses"


@dataclasses.dataclass(frozen=True, slots=True)
class _CheckedObjects:
    """Objects of a Broker at the last look.

    ``until_s``: end of the look's validity, in monotonic seconds.
    """

    objects: BrokerObjects
    until_s: float


class PodKeeper:
    """Pods of one term. ``clock`` returns monotonic seconds."""

    def __init__(
        self, services: ReconcilerServices, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the pods of one term; every existing pod is checked first."""
        self._services = services
        self._clock = clock
        #: Held while a pod is checked and perhaps replaced: at most one at a time.
        self._turn = asyncio.Lock()
        #: By Broker: the result of its last check.
        self._looked: dict[str, _CheckedObjects] = {}
        #: Broker epochs of brokers whose pods were replaced, from before. A broker that still has
        #: this epoch is not back, even if its pod is ready and the broker seems alive.
        self._replaced: dict[str, int] = {}
        #: The namespace's StatefulSets by name, as last listed, shared by all waiting Brokers.
        self._listed: dict[str, Json] = {}
        self._listed_until_s = 0.0

    async def keep(self, body: Json) -> float | None:
        """Reconcile the pod of one Broker; return the seconds until the next check.

        Stores the resulting :class:`PodState`. At most one pod is replaced at a time. Returns None
        if the Broker has no ``spec.pod``.
        """
        if not body["spec"].get("pod"):
            return None
        broker = Broker.parse(body)
        pod, node_id = broker.spec.pod, broker.spec.node_id
        if pod is None:
            return None
        services, name = self._services, broker.metadata.name
        # Pods could not reach any operator, so none is created.
        if not services.controller_addresses:
            services.state.pods[node_id] = PodState(name=f"{name}-0", missing=NO_ADDRESSES)
            return None
        desired = broker_objects(pod, identity_of(broker, services.controller_addresses))
        # The known state, if the last check is still valid or another broker is being replaced.
        found = self._waits(name, node_id, desired)
        # One Broker at a time: the decision about a restart and the restart belong together.
        if found is None:
            async with self._turn:
                found = await self._look(broker, desired)
        services.state.pods[node_id] = found
        # A waiting pod is checked soon, a refused one after a while, a healthy one at the end of
        # its check's validity.
        if found.hold is not None or found.restarting:
            return LOOK_AGAIN_S
        if found.refused or found.volume:
            self._looked.pop(name, None)
            return REFUSED_S
        return self._looked[name].until_s - self._clock()

    def _last(self, name: str, node_id: int, desired: BrokerObjects) -> PodState | None:
        """Return the result of the last look, while it is valid."""
        looked = self._looked.get(name)
        if looked is None or looked.objects != desired or self._clock() >= looked.until_s:
            return None
        return self._services.state.pods.get(node_id)

    def _waits(self, name: str, node_id: int, desired: BrokerObjects) -> PodState | None:
        """Return the pod's state if it is known without a call; None to look.

        That is so if all is well, or if another broker's turn is not over. Many Brokers may wait,
        and each is checked every few seconds.
        """
        last = self._last(name, node_id, desired)
        if last is None or last.restarting:
            return None
        if last.hold is None:
            return last
        hold = self._hold(node_id, self._seen_starting(node_id))
        return None if hold is None else dataclasses.replace(last, hold=hold)

    def forget(self, name: str) -> None:
        """Drop what is remembered of a deleted Broker."""
        self._looked.pop(name, None)
        self._replaced.pop(name, None)

    async def _look(self, broker: Broker, desired: BrokerObjects) -> PodState:
        """Apply the Broker's Kubernetes objects as far as allowed.

        Return the pod's resulting state. While a pod is being created, nothing is applied: its
        progress is read from one list of StatefulSets that serves all Brokers.
        """
        name = broker.metadata.name
        last = self._last(name, broker.spec.node_id, desired)
        if last is not None and last.restarting:
            if self._clock() >= self._listed_until_s:
                await self._list()
            live = self._listed.get(name)
            if live is not None and (last.why or not has_no_pod(live)):
                return dataclasses.replace(last, restarting=not is_complete(live))
        # If the calls below raise, no result remains, so the next check starts over.
        self._looked.pop(name, None)
        found = await self._applied(broker, desired)
        pause_s = REFUSED_S if found.volume or found.why else CHECK_S
        self._looked[name] = _CheckedObjects(desired, self._clock() + pause_s)
        return found

    async def _applied(self, broker: Broker, desired: BrokerObjects) -> PodState:
        """Check the Secrets and owners, then apply the volume claim and the pod's objects.

        A refusal by the API server or by an owner is part of the returned state, and is not raised.
        """
        seen, services = PodState(name=f"{broker.metadata.name}-0"), self._services
        api, namespace = services.client.api, services.cluster_key.namespace
        try:
            # A running pod keeps its Secrets: only changes wait for the owner of the Secret.
            for secret in sorted(secret_names(broker.spec.pod)):
                await offered_secret(api, namespace, secret, OfferedTo.CLUSTER)
            live = await services.named(STATEFUL_SET, broker.metadata.name)
            # Objects that have the names but are not ours are not taken over.
            foreign_owner = await self._foreign_owner(live, desired)
            if foreign_owner:
                return dataclasses.replace(seen, refused=foreign_owner)
            if desired.claim is not None:
                seen = await self._keep_claim(desired.claim, seen)
            return await self._pod(broker, desired, live, seen)
        except SecretProblem as error:
            return dataclasses.replace(seen, refused=str(error))
        except REFUSALS as error:
            return dataclasses.replace(seen, refused=error.server_message)

    async def _pod(
        self, broker: Broker, desired: BrokerObjects, live: Json | None, seen: PodState
    ) -> PodState:
        """Apply the Service, the ConfigMap and the StatefulSet, once the pod may be replaced.

        ``live`` is the existing StatefulSet, None without one. A change that replaces the pod
        restarts the broker, so it waits (state ``hold``) until no other broker restarts and no
        partition would lose its leader or its minimum ISR.
        """
        services, name, node_id = self._services, broker.metadata.name, broker.spec.node_id
        exists = live is not None
        # A change of the Service never replaces the pod.
        await self._apply(SERVICE, desired.service, force=True)
        changes = False
        # The API server adds defaults, so only a dry run shows whether the pod template changes.
        if live is not None:
            new = await self._apply(STATEFUL_SET, desired.stateful_set, force=True, dry_run=True)
            changes = replaces_pod(live, new)
        # Only one pod is replaced at a time. A fresh list shows which brokers are starting.
        if changes:
            await self._list()
            hold = self._hold(node_id, self._starting(node_id))
            if hold is not None:
                return dataclasses.replace(seen, hold=hold)
        # The ConfigMap has to match the pod that mounts it, so both change together.
        await self._apply(CONFIG_MAP, desired.config_map, force=exists)
        if changes and not services.leads():  # the calls took time, in which the Lease may be lost
            return dataclasses.replace(seen, hold=Hold(unreached=True))
        # Remember the epoch before the write: the new process may register at once.
        before = self._replaced.get(name)
        if changes:
            self._replaced[name] = self._epoch(node_id)
        try:
            # The list of StatefulSets is outdated from now on.
            self._listed_until_s = 0.0
            written = await self._apply(STATEFUL_SET, desired.stateful_set, force=exists)
        except REFUSALS:  # nothing was written, so no broker has to come back
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
        # The pod is not ready yet: add the cause that its events show, if any.
        why = seen.why or await self._why(seen.name, written)
        return dataclasses.replace(seen, restarting=True, why=why)

    async def _why(self, pod: str, stateful_set: Json) -> str:
        """Return why there is no pod, or none that is ready, as far as Events show."""
        services = self._services
        api, namespace = services.client.api, services.cluster_key.namespace
        if has_no_pod(stateful_set):
            name = stateful_set["metadata"]["name"]
            text = await last_warning(api, namespace, STATEFUL_SET, name)
            return text and f"is not created: {text}"
        text = await why_stuck(api, namespace, pod)
        return text and f"is not ready: {text}"

    async def _foreign_owner(self, live: Json | None, desired: BrokerObjects) -> str:
        """Return who owns existing objects with the Broker's names, "" if it is this Broker.

        Such objects are not taken over: an apply without force would merge into an object with
        compatible fields, and the object would then be deleted with the Broker.
        """
        if live is not None:
            if belongs_to_broker(live, desired.stateful_set):
                return ""
            return f"StatefulSet {live['metadata']['name']} was not created for it. {_RENAME}"
        if desired.claim is not None:
            claim = await self._services.named(VOLUME_CLAIM, desired.claim["metadata"]["name"])
            if claim is not None and (foreign := foreign_claim(claim, desired.claim)):
                return foreign
        name = desired.service["metadata"]["name"]
        service = await self._services.named(SERVICE, name)
        if service is not None and not belongs_to_broker(service, desired.service):
            return f"Service {name} belongs to {owner_text(service)}. {_RENAME}"
        # A ConfigMap cannot be read by this account, so the field managers of a dry run decide.
        others = other_managers(
            await self._apply(CONFIG_MAP, desired.config_map, force=False, dry_run=True)
        )
        return f"ConfigMap {name} belongs to {', '.join(others)}. {_RENAME}" if others else ""

    async def _keep_claim(self, desired: Json, seen: PodState) -> PodState:
        """Apply the broker's PersistentVolumeClaim.

        Return ``seen`` with the claim's problem, if any.
        """
        services, name = self._services, desired["metadata"]["name"]
        try:
            live = await services.named(VOLUME_CLAIM, name)
            if live is None or not claim_matches(live, desired):
                live = await self._apply(VOLUME_CLAIM, desired, force=True)
        except REFUSALS as error:
            return dataclasses.replace(seen, volume=f"claim {name}: {error.server_message}")
        if not is_pending(live):
            return seen
        # A pending claim: its last warning Event usually names the cause.
        api, namespace = services.client.api, services.cluster_key.namespace
        why = why_pending(live, await last_warning(api, namespace, VOLUME_CLAIM, name))
        return dataclasses.replace(seen, why=why and f"waits for its volume: {why}")

    def _hold(self, node_id: int, starting: Iterable[int]) -> Hold | None:
        """Return why a restart has to wait, None if it need not.

        ``starting``: other brokers whose pods are not ready. A new operator does not know all of
        them yet, and another operator may restart a broker once the Lease has ended.
        """
        services = self._services
        if not (services.leads() and services.first_reports.are_complete):
            return Hold(unreached=True)
        others = {other for other in self._pod_brokers().values() if other != node_id}
        return restarts.hold(services.state, node_id, others, set(starting))

    def _starting(self, node_id: int) -> Iterable[int]:
        """Yield other brokers whose pods are starting, by the StatefulSets that were just
        listed.
        """
        for name, other in self._pod_brokers().items():
            live = self._listed.get(name)
            if other == node_id or live is None:
                continue
            if not (is_complete(live) and self._is_back(name, other)):
                yield other

    def _seen_starting(self, node_id: int) -> Iterable[int]:
        """Yield other brokers whose pods are starting, by the last look at each of them."""
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
        """Return node ids by name of the Brokers in pods."""
        services, name = self._services, self._services.cluster_key.name
        return {
            key_of(body).name: int(body["spec"]["nodeId"])
            for body in services.objects.of_kind(BROKER)
            if body["spec"].get("pod") and cluster_of(body) == name
        }

    async def _list(self) -> None:
        services = self._services
        found = await services.client.api.list_all(STATEFUL_SET, services.cluster_key.namespace)
        self._listed = {str(body["metadata"]["name"]): body for body in found}
        self._listed_until_s = self._clock() + LOOK_AGAIN_S

    async def _apply(self, kind: Kind, body: Json, *, force: bool, dry_run: bool = False) -> Json:
        return await self._services.client.api.apply(
            kind, body, manager=MANAGER, force=force, dry_run=dry_run
        )
