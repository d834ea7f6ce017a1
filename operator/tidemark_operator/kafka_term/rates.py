"""The rates that throttle reassignments at each broker of an Apache Kafka (KIP-73): on record in
the Cluster's ``status.throttledBrokers`` before they are set, so that whoever comes next takes them
away. A broker that somebody else throttles keeps that rate.
"""

from collections.abc import Iterable

from tidemark.kafka_client.values import BROKER, ConfigChange
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import CLUSTER
from tidemark_operator.resources.quantities import quantity_bytes

THROTTLE_DEFAULT = "50Mi"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


class BrokerRates:
    """Of one term. Raises ``EngineUnavailable``, ``KubeError``."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._throttled: set[int] = set()

    async def throttle(self) -> None:
        """Each live broker that nobody else throttles; on record first."""
        services = self._services
        live = {broker.node_id for broker in services.state.live_brokers()}
        recorded = _recorded(services)
        fresh = [node for node in sorted(live - recorded) if not await self._has_own_rate(node)]
        if fresh:
            await self._record(recorded | set(fresh))
        due = sorted((recorded | set(fresh)) & live - self._throttled)
        if due:
            rate = str(quantity_bytes(self._throttle_text()))
            values = dict.fromkeys(RATES, rate)
            await self._alter([ConfigChange(BROKER, str(node), values) for node in due])
            self._throttled.update(due)

    @property
    def stand(self) -> bool:
        """Whether any broker has a rate of ours."""
        return bool(self._throttled) or bool(_recorded(self._services))

    async def release(self) -> None:
        """Take all of ours away."""
        services = self._services
        known = {broker.node_id for broker in services.state.brokers.values()}
        recorded = _recorded(services)
        changes = [ConfigChange(BROKER, str(node), {}, RATES) for node in sorted(recorded & known)]
        if changes:
            await self._alter(changes)
        await self._record(set())
        self._throttled.clear()

    async def _alter(self, changes: list[ConfigChange]) -> None:
        """All of them, or what is on record stays and it is tried again."""
        answers = await self._services.kafka.alter(changes)
        for node, failure in sorted(answers.items()):
            if failure is not None:
                raise EngineUnavailable(f"the rates of broker {node} stay as they are: {failure}")

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
