"""Apache Kafka as the engine of a local cluster.

Its nodes run before the Cluster that names them exists, and the operator creates the Broker
objects.
"""

from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.processes import ProcessRecord

#: A dedicated controller, so that any broker may be stopped or killed.
CONTROLLERS = 1
#: Shorter than in production, so that effects are visible within seconds.
QUICK = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}


class KafkaBrokers:
    """Apache Kafka brokers of one folder."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.nodes = KafkaNodes(layout)

    def prepare(self, brokers: int) -> None:
        """Create the Kafka cluster if the folder has none, and start all its nodes.

        ``brokers``: number of brokers to declare. Raises ToolchainError without Java or Maven.
        """
        if not self.nodes.exists():
            self._layout.tier.mkdir(exist_ok=True)
            self.nodes.create(
                controllers=CONTROLLERS,
                replicas=min(3, brokers),
                tier=self._layout.tier,
                entries=QUICK,
            )
        for node_id in range(1, brokers + 1):
            self.declare(node_id)
        self.nodes.start_all()

    def ids(self) -> list[int]:
        """Return the ids of all brokers that were ever added to the folder, ascending."""
        return self.nodes.broker_ids()

    def declare(self, node_id: int) -> None:
        """Write the broker's configuration, if it has none yet."""
        self.nodes.declare_broker(node_id)

    def start(self, node_id: int) -> ProcessRecord:
        """Start a declared broker and wait until it is registered and unfenced."""
        (record,) = self.nodes.start([node_id])
        return record
