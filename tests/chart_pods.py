"""Objects that the chart's operator creates for a Broker: a release creates no broker pod
itself.
"""

from typing import Any

from tests.helm import named
from tidemark_operator.pods.identity import PodBroker
from tidemark_operator.pods.manifests import BrokerObjects, broker_objects
from tidemark_operator.resources.broker import Broker
from tidemark_operator.settings import OperatorSettings, parse_arguments


def operator_settings(objects: list[dict[str, Any]]) -> OperatorSettings:
    """With which the release ``tidemark`` starts its operator."""
    template = named(objects, "StatefulSet", "tidemark-operator")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return parse_arguments(container["args"])


def objects_of(objects: list[dict[str, Any]], broker: str) -> BrokerObjects:
    """Return the objects of a release's Broker, as its operator applies them."""
    body = named(objects, "Broker", broker)
    parsed = Broker.parse(body)
    assert parsed.spec.pod is not None
    identity = PodBroker(
        name=broker,
        namespace=body["metadata"]["namespace"],
        uid="uid",
        node_id=parsed.spec.node_id,
        rack=parsed.spec.rack,
        cluster=parsed.spec.cluster_ref.name,
        controllers=operator_settings(objects).controller_addresses,
    )
    return broker_objects(parsed.spec.pod, identity)


def entries_of(config_map: dict[str, Any]) -> dict[str, str]:
    """The configuration that a broker's pod is given."""
    lines = (line.partition("=") for line in config_map["data"]["broker.properties"].splitlines())
    return {key: value for key, _, value in lines}
