"""Messages of the control protocol with everything in them that a test does not care about."""

from typing import Any

from tidemark.wire import control


def topic_state(topic_id: Any, name: str, **fields: Any) -> control.TopicState:
    """A topic without configuration, tiering or rows."""
    bare: dict[str, Any] = {
        "config": (),
        "tiering_state": 0,
        "tiered_epoch": 0,
        "disable_policy": 0,
        "partitions": (),
    }
    return control.TopicState(topic_id=topic_id, name=name, **bare | fields)


def partition_states(
    *topics: control.TopicState, full: bool = False, **fields: Any
) -> control.PartitionStatesRequest:
    """Return a controller's PartitionStates without brokers, removals or store."""
    bare: dict[str, Any] = {
        "controller_id": "c",
        "controller_epoch": 1,
        "cluster_id": "c",
        "cluster_config": (),
        "remote_storage": "",
        "store_id": "",
        "brokers": (),
        "removals": (),
    }
    return control.PartitionStatesRequest(full=full, topics=topics, **bare | fields)
