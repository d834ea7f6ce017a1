"""Storage of registrations: a registration counts once it is in the Broker's status."""

import dataclasses

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.commit import apply_broker
from tidemark_operator.controller.model import BrokerInfo
from tidemark_operator.controller.status import broker_status
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import BROKER, Json
from tidemark_operator.objects.conversions import broker_info
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.resources.broker import Broker

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
        apply_broker(services.state, _with_status(drafted, known))
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
        apply_broker(services.state, _with_status(drafted, _known(written)))
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
        generation=stored.generation,
        status=stored.status,
    )
