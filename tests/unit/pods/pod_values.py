"""Values of a broker's pod, as in a manifest."""

from typing import Any

from tidemark_operator.pods.identity import PodBroker
from tidemark_operator.resources.broker_pod import BrokerPod

BROKER = PodBroker(
    name="broker-1",
    namespace="ns",
    uid="5eed",
    node_id=1,
    rack="a",
    cluster="main",
    controllers="op-0:9095,op-1:9095",
)
POD: dict[str, Any] = {
    "image": "tidemark/broker:1",
    "storage": {"size": "20Gi"},
    "listeners": [{"name": "PLAINTEXT", "port": 9092, "protocol": "PLAINTEXT"}],
}


def pod(**fields: Any) -> BrokerPod:
    """Return the parsed pod, with some fields replaced."""
    return BrokerPod.model_validate(POD | fields)
