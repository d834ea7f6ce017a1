"""Throttle rates of reassignments at each broker of an Apache Kafka (KIP-73).

They are recorded in the Cluster's ``status.throttledBrokers`` before they are set, so that a later
operator removes them. A broker that another client throttles keeps that rate.
"""

from collections.abc import Iterable

from tidemark.kafka_client.values import BROKER, ConfigChange
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import CLUSTER
from tidemark_operator.resources.scalars import quantity_bytes

THROTTLE_DEFAULT = "50Mi"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


class BrokerRates:
    """Rates of one term. Raises ``EngineUnavailable``, ``KubeError``."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._throttled: set[int] = set()

    @property
    def has_throttles(self) -> bool:
        """Return whether a live broker has a rate of the operator, or a missing one is recorded."""
        recorded = _recorded(self._services)
        return bool(self._throttled) or recorded != self._away(recorded)

    async def throttle(self) -> None:
        """Throttle each live broker that no other client throttles; record it first."""
        # A broker that another client throttles keeps that rate and is not recorded.
        live, recorded = self._live(), _recorded(self._services)
        fresh = [node for node in sorted(live - recorded) if not await self._has_own_rate(node)]
        # The record is first: a rate that is set without it would stay after a crash.
        if fresh:
            await self._record(recorded | set(fresh))
        rate = str(quantity_bytes(self._throttle_text()))
        for node in sorted((recorded | set(fresh)) & live - self._throttled):
            await self._alter(ConfigChange(BROKER, str(node), dict.fromkeys(RATES, rate)))
            self._throttled.add(node)

    async def release(self) -> None:
        """Remove all rates of the operator.

        Only the broker itself can do that, so one that is down stays recorded until it returns.
        """
        recorded = _recorded(self._services)
        # A broker without the rate is no longer recorded, even if the next one fails.
        for node in sorted(recorded & self._live()):
            await self._alter(ConfigChange(BROKER, str(node), {}, RATES))
            self._throttled.discard(node)
        await self._record(self._away(recorded))
        self._throttled.clear()

    def _live(self) -> set[int]:
        return {broker.node_id for broker in self._services.state.live_brokers()}

    def _away(self, nodes: set[int]) -> set[int]:
        """Return the registered brokers that are not live."""
        known = {broker.node_id for broker in self._services.state.brokers.values()}
        return nodes & known - self._live()

    async def _alter(self, change: ConfigChange) -> None:
        failure = await self._services.kafka.alter_broker(change)
        if failure is not None:
            # Unthrottled copies could starve clients, so nothing moves without the rate.
            text = f"throttle of broker {change.name} was not changed: {failure}"
            raise EngineUnavailable(text)

    async def _has_own_rate(self, node_id: int) -> bool:
        return bool(await self._services.kafka.broker_values(node_id, RATES, own=True))

    async def _record(self, nodes: Iterable[int]) -> None:
        services = self._services
        status = {**services.state.cluster.status}
        status.pop("throttledBrokers", None)
        if nodes:
            status["throttledBrokers"] = sorted(nodes)
        await services.statuses.write(CLUSTER, services.cluster_key, status)

    def _throttle_text(self) -> str:
        body = self._services.objects.get(self._services.cluster_key) or {"spec": {}}
        kafka = (body["spec"].get("engine") or {}).get("kafka") or {}
        return str((kafka.get("reassignment") or {}).get("throttle") or THROTTLE_DEFAULT)


def _recorded(services: KafkaServices) -> set[int]:
    kept = services.state.cluster.status.get("throttledBrokers")
    return {int(node) for node in kept} if isinstance(kept, list | tuple) else set()
