"""A registration counts only once it stands in the Broker's status."""

import dataclasses

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.commit import apply_broker
from tidemark_operator.controller.model import BrokerInfo
from tidemark_operator.controller.status import broker_status
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import BROKER, Json
from tidemark_operator.objects.conversions import broker_info
from tidemark_operator.reconcile.services import Services
from tidemark_operator.resources.broker import Broker

TRIES = 4


async def write_broker(services: Services, drafted: BrokerInfo) -> bool:
    """Persist a registration before it counts. Flags (fenced, shutting down) are not: they can
    be told from the slices, and the Broker's own reconciliation writes them. Nothing comes
    between the API server's answer and the state: another status write would tell the former
    registration."""
    known = services.state.brokers.get(drafted.node_id)
    if known is not None and _identity(known) == _identity(drafted):
        apply_broker(services.state, _with_status(drafted, known))
        return True
    key = BROKER.key(drafted.key)
    for _ in range(TRIES):
        held = services.objects.get(key)
        if held is None:
            return False
        stored = _known(held)
        if stored.broker_epoch > drafted.broker_epoch:
            return False  # a later one stands there
        fresh = _with_status(drafted, stored)
        told = dataclasses.replace(fresh, generation=_observed(fresh))
        status = broker_status(services.state, told, now_ms=wall_ms()).status
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
    """A broker comes back, whatever a newer version has written into its spec."""
    return broker_info(Broker.known_part(body), fenced=True)


def _observed(broker: BrokerInfo) -> int:
    """The generation that was reconciled last: a registration looks at no spec."""
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
    """The drafted registration over what the object says about everything else."""
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
