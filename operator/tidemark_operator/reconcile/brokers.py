"""One Broker: its finalizer, its status, and its removal once nothing depends on it."""

import logging
from collections.abc import Sequence

from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.keepers import KeptByAnother, Overtaken
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import registration
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import count, normal
from tidemark_operator.controller.model import BrokerInfo, RowKey
from tidemark_operator.controller.status import broker_status
from tidemark_operator.controller.status.conditions import condition, render, summary
from tidemark_operator.controller.status.pacing import figures_interval_ms
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import BROKER, Json, Key
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.reconcile.elsewhere import elsewhere, write_conditions
from tidemark_operator.reconcile.reflector import Reflector
from tidemark_operator.reconcile.services import Services
from tidemark_operator.resources.names import BROKER_FINALIZER

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
#: Partitions that a condition names; the rest are counted.
NAMED_MAX = 3


class BrokerReconciler:
    """Reconciles the Brokers of one term."""

    def __init__(self, services: Services, reflector: Reflector) -> None:
        self._services = services
        self._reflector = reflector

    async def reconcile(self, key: Key) -> float | None:
        """One step; when to look again, in seconds."""
        services = self._services
        body = services.objects.get(key)
        if body is None:
            return None
        if cluster_of(body) != services.cluster_key.name:
            return await elsewhere(services, BROKER, key, body)
        node_id = int(body["spec"]["nodeId"])
        broker = services.state.brokers.get(node_id)
        if broker is None or broker.key != key.namespaced_name:
            return await self._taken(key, body, broker)
        if broker.deleting:
            return await self._remove(key, body, broker)
        await services.client.hold(BROKER, body, BROKER_FINALIZER)
        try:
            await services.certificates.leaf(broker.node_id, key.name, body)
        except Overtaken:
            raise
        except (BadCertificate, KeptByAnother) as error:  # its status is told all the same
            logger.warning("broker %d is given no certificate: %s", broker.node_id, error)
            await self._write(key, broker.node_id)
            return LOOK_AGAIN_S
        return await self._write(key, broker.node_id)

    async def _taken(self, key: Key, body: Json, other: BrokerInfo | None) -> float | None:
        """Another Broker has this node id; when it goes, this one is looked at again."""
        if body["metadata"].get("deletionTimestamp"):
            await self._services.client.release(BROKER, body, BROKER_FINALIZER)
            return None
        if other is None:
            self._reflector.changed(body)
            return 0.0
        text = f"nodeId {other.node_id} belongs to Broker {other.key}: delete one of the two"
        conditions = summary(ready=False, reason="NodeIdTaken", message=text, stalled=True)
        await write_conditions(self._services, BROKER, key, body, conditions)
        return LOOK_AGAIN_S

    async def _remove(self, key: Key, body: Json, broker: BrokerInfo) -> float | None:
        services, node_id = self._services, broker.node_id
        if BROKER_FINALIZER not in finalizers_of(body):
            return None
        blockers = registration.removal_blockers(services.state, node_id)
        if broker.live or blockers:
            reason, text = "BrokerIsLive", f"broker {node_id} is live: stop it first"
            if blockers:
                reason, text = "ReplicasInUse", _in_use(services.state, blockers)
            await self._write(key, node_id, reason, text)
            return LOOK_AGAIN_S
        await services.committer.decide(lambda draft: registration.remove_broker(draft, node_id))
        services.events.emit(
            normal("Broker", broker.key, "BrokerRemoved", f"broker {node_id} is removed")
        )
        await services.client.release(BROKER, body, BROKER_FINALIZER)
        return None

    async def _write(
        self, key: Key, node_id: int, reason: str = "", draining: str = ""
    ) -> float | None:
        """Write the status if it differs; ``draining`` says why the Broker cannot go yet."""
        services, now_ms = self._services, wall_ms()
        broker = services.state.brokers.get(node_id)
        if broker is None:
            return None
        status = broker_status(services.state, broker, now_ms=now_ms).status
        if draining:
            waits = [condition("Draining", True, reason, draining)]
            listed = status["conditions"]
            rendered = render(waits, broker.status, generation=broker.generation, now_ms=now_ms)
            status["conditions"] = [*(listed if isinstance(listed, list) else []), *rendered]
        written = await services.statuses.write_if_due(
            BROKER, key, broker.status, status, now_ms=now_ms
        )
        if not written and broker.status != status:
            return figures_interval_ms(status) / 1000
        return None


def _in_use(state: ControllerState, blockers: Sequence[RowKey]) -> str:
    """Why a Broker cannot go yet, and every way in which it can."""
    topics = [state.topic_by_id(topic_id) for topic_id, _ in blockers[:NAMED_MAX]]
    named = [
        f"{'(no Topic)' if topic is None else topic.name}-{partition}"
        for topic, (_, partition) in zip(topics, blockers, strict=False)
    ]
    more = f" and {len(blockers) - NAMED_MAX} more" if len(blockers) > NAMED_MAX else ""
    rows = [state.row(key) for key in blockers]
    others = any(row is not None and len(row.hosts) > 1 for row in rows)
    catch_up = "start the other replicas and let them catch up, or " if others else ""
    return (
        f"{count(len(blockers), 'partition')} ({', '.join(named)}{more}) "
        "would lose the last live copy: "
        f"{catch_up}delete the topics; until then the broker serves on, and takes no new replica"
    )
