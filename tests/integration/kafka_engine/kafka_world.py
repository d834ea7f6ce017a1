"""A namespace whose Cluster is on an Apache Kafka, and operators that manage it."""

from typing import Any

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json


class KafkaWorld(ClusterWorld):
    """Closes everything that it started."""

    async def create_kafka_cluster(self, bootstrap: str, **kafka: Any) -> Json:
        """Create the Cluster; ``kafka`` has more fields of ``spec.engine.kafka``."""
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
        """Wait until a Topic is Ready in its present generation; return it."""
        await self.condition(TOPIC, name, "Ready", "True")
        return await self.get(TOPIC, name)
