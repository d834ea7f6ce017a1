"""Reconciler of Brokers.

It adds the finalizer, keeps the pod and the external Services of a Broker that has them, writes the
status, and removes the Broker once nothing depends on it. A registration counts once it is in the
Broker's status.
"""

import dataclasses
import logging

from tidemark.reasons import Reason
from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.certificate_stores import BundleConflict, BundleNameTaken
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import accepted_losses, draining, rebuilding, registration
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.state.model import BrokerInfo, RowKey
from tidemark_operator.controller.status import broker_status
from tidemark_operator.controller.status.conditions import find, summary
from tidemark_operator.controller.status.write_pacing import figures_interval_ms
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import BROKER, Json, Key
from tidemark_operator.objects.conversions import broker_info, cluster_of
from tidemark_operator.reconcile.external_listeners import ExternalServices
from tidemark_operator.reconcile.object_conditions import report_foreign, write_conditions
from tidemark_operator.reconcile.pods import PodKeeper
from tidemark_operator.reconcile.reflector import Reflector
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.workers import earliest
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.names import BROKER_FINALIZER

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0


class BrokerReconciler:
    """Reconciles the Brokers of one term."""

    def __init__(self, services: ReconcilerServices, reflector: Reflector) -> None:
        self._services = services
        self._reflector = reflector
        self._pods = PodKeeper(services)
        self._external = ExternalServices(services)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Broker object: certificate, pod, external Services, status, deletion.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        # The object no longer exists: drop what is remembered about it.
        if body is None:
            self._pods.forget(key.name)
            self._external.forget(key)
            return None
        if cluster_of(body) != services.cluster_key.name:
            return await report_foreign(services, BROKER, key, body)
        # The state knows one Broker per node id; another object with the id waits.
        node_id, generation = int(body["spec"]["nodeId"]), int(body["metadata"]["generation"])
        broker = services.state.brokers.get(node_id)
        if broker is None or broker.key != key.namespaced_name:
            return await self._taken(key, body, broker)
        if broker.deleting:
            return await self._remove(key, body, broker)
        # The finalizer comes before anything is created, and the certificate before the pod that
        # mounts it.
        if not broker.deletion_blocked:
            await services.client.ensure_finalizer(BROKER, body, BROKER_FINALIZER)
        try:
            await services.certificates.leaf(broker.node_id, key.name, body)
        except BundleConflict:
            raise
        except (BadCertificate, BundleNameTaken) as error:  # the status is still written
            logger.warning("no certificate for broker %d: %s", broker.node_id, error)
            await self._write(key, broker.node_id, generation)
            return LOOK_AGAIN_S
        pod_s = await self._pods.keep(body)
        external_s = await self._external.keep_broker(body)
        status_s = await self._write(key, broker.node_id, generation)
        return earliest(external_s, pod_s, status_s)

    async def _taken(self, key: Key, body: Json, other: BrokerInfo | None) -> float | None:
        """Report that another Broker has this node id; retried until that one is deleted."""
        if body["metadata"].get("deletionTimestamp"):
            await self._services.client.release(BROKER, body, BROKER_FINALIZER)
            return None
        if other is None:
            # No Broker has it in the state: either this one is invalid, or the other was deleted.
            broker_info(body, fenced=True)  # raises InvalidResource
            self._reflector.changed(body)
            return 0.0
        text = f"nodeId {other.node_id} belongs to Broker {other.key}. Delete one of the two"
        conditions = summary(ready=False, reason=Reason.NODE_ID_TAKEN, message=text, stalled=True)
        await write_conditions(self._services, BROKER, key, body, conditions, once=False)
        return LOOK_AGAIN_S

    async def _remove(self, key: Key, body: Json, broker: BrokerInfo) -> float | None:
        """Remove a deleted Broker once its replicas have moved, and release its finalizer.

        If no replica can move, a stopped broker is removed once other brokers have its records; its
        replicas become placeholders. Until then the broker is kept running. Returns the seconds
        until the next check, None after the removal.
        """
        services, node_id = self._services, broker.node_id
        # The state may lack replicas that only the brokers' reports show.
        if not services.first_reports.are_complete:
            return LOOK_AGAIN_S
        if BROKER_FINALIZER not in finalizers_of(body):
            return None
        given_up: list[RowKey] | None = None
        # A check without a commit first; the commit repeats it with the newest state.
        if draining.may_be_removed(Draft(services.state), broker):
            given_up = await services.committer.decide(lambda draft: _removed(draft, node_id))
        if given_up is None:
            pod_s = await self._pods.keep(body)  # the broker serves until it may be removed
            external_s = await self._external.keep_broker(body)
            status_s = await self._write(key, node_id, broker.generation)
            return earliest(external_s, pod_s, status_s)
        services.events.emit(accepted_losses.removal_event(services.state, broker, given_up))
        await services.client.release(BROKER, body, BROKER_FINALIZER)
        return None

    async def _write(self, key: Key, node_id: int, generation: int) -> float | None:
        """Write the Broker's status if it differs.

        Return the seconds until the next reconciliation. ``generation`` becomes the observed
        generation: it is the one that was reconciled, while the object in the store may be newer by
        now.
        """
        services, now_ms = self._services, wall_ms()
        present = services.state.brokers.get(node_id)
        if present is None:
            return None
        broker = dataclasses.replace(present, generation=generation)
        status = broker_status(services.state, broker, now_ms=now_ms).status
        written = await services.statuses.write_if_due(
            BROKER, key, broker.status, status, now_ms=now_ms
        )
        if written:
            self._notify(broker, status)
        state = services.state
        # A drain progresses without any change of this object.
        if broker.leaving and (
            state.partitions.replica_count(node_id) or rebuilding.only_reported(state, node_id)
        ):
            return LOOK_AGAIN_S
        # Only figures differ, which are written at most once in an interval.
        if not written and broker.status != status:
            return figures_interval_ms(status) / 1000
        return None

    def _notify(self, broker: BrokerInfo, status: Json) -> None:
        """Emit one Event when a drain has finished, or cannot continue."""
        former, present = (find(body, "Draining") or {} for body in (broker.status, status))
        reason = str(present.get("reason", ""))
        if reason in _EVENT_REASONS and reason != former.get("reason"):
            kind = normal if reason == Reason.DRAINED else warning
            text = str(present.get("message", ""))
            self._services.events.emit(kind("Broker", broker.key, reason, text))


def _removed(draft: Draft, node_id: int) -> list[RowKey] | None:
    """Remove a Broker from all partitions, if it may still go; return the partitions that lose
    records.
    """
    broker = draft.broker(node_id)
    if broker is None or not draining.may_be_removed(draft, broker):
        return None
    given_up = registration.removal_blockers(draft, node_id)
    registration.remove_broker(draft, node_id)
    return given_up


_EVENT_REASONS = (Reason.DRAINED, Reason.REPLICAS_CANNOT_MOVE, Reason.REPLICAS_IN_USE)


# ------------------------------------------------------------ registrations


TRIES = 4


async def write_broker(services: ReconcilerServices, drafted: BrokerInfo) -> bool:
    """Persist a broker's registration in its Broker's status, then put it into the state.

    Returns whether it is stored; False if the Broker was deleted, a later registration is stored,
    or conflicts persist. Flags (fenced, shutting down) are not persisted here: they follow from the
    PartitionSlices. Nothing may run between the API server's answer and the update of the state, or
    another status write would restore the former registration.
    """
    known = services.state.brokers.get(drafted.node_id)
    # Only flags changed: nothing to persist.
    if known is not None and _identity(known) == _identity(drafted):
        services.state.put_broker(_with_status(drafted, known))
        return True
    key = BROKER.key(drafted.key)
    # Each conflict is followed by a fresh read of the object.
    for _ in range(TRIES):
        body = services.objects.get(key)
        if body is None:
            return False
        stored = _known(body)
        if stored.broker_epoch > drafted.broker_epoch:
            return False  # a later registration is stored
        fresh = _with_status(drafted, stored)
        # A registration does not reconcile the spec, so the observed generation stays.
        observed = dataclasses.replace(fresh, generation=_observed(fresh))
        status = broker_status(services.state, observed, now_ms=wall_ms()).status
        try:
            written = await services.statuses.write(BROKER, key, status)
        except Conflict:
            services.metrics.conflicts.labels(BROKER.kind).inc()
            await services.client.refresh(key)
            continue
        services.state.put_broker(_with_status(drafted, _known(written)))
        return True
    return False


def _known(body: Json) -> BrokerInfo:
    """Return the Broker of an object; unknown fields of a newer version must not stop a broker."""
    return broker_info(Broker.known_part(body), fenced=True)


def _observed(broker: BrokerInfo) -> int:
    """Return the generation that was reconciled last."""
    observed = broker.status.get("observedGeneration")
    return observed if isinstance(observed, int) else broker.generation


def _identity(broker: BrokerInfo) -> tuple[object, ...]:
    return (
        broker.broker_epoch,
        broker.incarnation_id,
        broker.directory_id,
        broker.listeners,
        broker.reported_rack,
    )


def _with_status(drafted: BrokerInfo, stored: BrokerInfo) -> BrokerInfo:
    """Return the drafted registration with all other fields of the object."""
    return dataclasses.replace(
        drafted,
        key=stored.key,
        spec_rack=stored.spec_rack,
        external=stored.external,
        deleting=stored.deleting,
        drain=stored.drain,
        is_reader=stored.is_reader,
        generation=stored.generation,
        status=stored.status,
    )
