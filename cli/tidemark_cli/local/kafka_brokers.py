"""Apache Kafka as the engine of a local cluster: its nodes run before there is a Cluster that names
them, and the operator shows its brokers as Broker objects by itself."""

from tidemark_cli.local.kafka_nodes import KafkaNodes
from tidemark_cli.local.layout import Layout
from tidemark_cli.local.processes import ProcessRecord

#: One controller of its own, so that any broker may be stopped or killed.
CONTROLLERS = 1
#: A local cluster is for trying things out: look more often than a production broker does.
QUICK = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}


class KafkaBrokers:
    """Those of one folder."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.nodes = KafkaNodes(layout)

    def prepare(self, brokers: int) -> None:
        """Make the cluster in the folder, where there is none, for so many brokers at first, and
        start all of it. Raises ToolchainError where there is no Java or no Maven."""
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
        """The brokers that were ever added here, ascending."""
        return self.nodes.broker_ids()

    def declare(self, node_id: int) -> None:
        """Its configuration, if it has none yet."""
        self.nodes.declare_broker(node_id)

    def start(self, node_id: int) -> ProcessRecord:
        """One that was declared; waits until it is registered and unfenced."""
        (record,) = self.nodes.start([node_id])
        return record
