"""A namespace whose Cluster is on an Apache Kafka, and operators that look after it."""

from typing import Any

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json


class KafkaWorld(ClusterWorld):
    """Everything that it started ends with ``close``."""

    async def create_kafka_cluster(self, bootstrap: str, **kafka: Any) -> Json:
        """The Cluster; ``kafka``: more of ``spec.engine.kafka``."""
        config = kafka.pop("config", {})
        body = {
            "apiVersion": CLUSTER.api_version,
            "kind": "Cluster",
            "metadata": {"name": "demo"},
            "spec": {
                "engine": {"kafka": {"bootstrapServers": bootstrap, **kafka}},
                **({"config": config} if config else {}),
            },
        }
        return await self.api.create(CLUSTER, self.namespace, body)

    async def ready(self, name: str) -> Json:
        """A Topic, once it is Ready in its present generation."""
        await self.condition(TOPIC, name, "Ready", "True")
        return await self.get(TOPIC, name)
