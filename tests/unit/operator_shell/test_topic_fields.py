"""Every field of a Topic's manifest reaches the brokers, or is listed here as not needed there.

A forgotten field would be a change without effect.
"""

import dataclasses
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from tests.control_messages import partition_states
from tests.unit.operator_shell.test_conversions import body
from tidemark.wire import control
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_operator.controller.snapshot import topic_state
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.conversions import topic_info
from tidemark_operator.resources.topic import (
    LocalRetentionSpec,
    MaxLagSpec,
    TopicSpec,
    TopicTieringSpec,
)

LOCAL = {"time": "1h", "size": "1Gi"}
LAG = {"time": "10s", "size": "64Mi"}
TIERED = {"enabled": True, "disablePolicy": "Retain", "localRetention": LOCAL, "maxLag": LAG}
#: A field of ``spec`` -> another value, and whether brokers receive it beside the rows.
FIELDS: dict[str, tuple[object, bool]] = {
    "topicName": ("other", True),
    "partitions": (4, False),  # the rows
    "replicationFactor": (2, False),  # the rows
    "config": ({"retention.ms": "7200000"}, True),
    "tiering": (None, True),
    "deletionPolicy": ("Orphan", False),  # a Removal
    "deletionGracePeriod": ("24h", False),  # the time of the Removal
    "clientChanges": ("Refuse", False),  # the operator refuses
    "tiering.enabled": (False, True),
    "tiering.disablePolicy": ("Delete", False),  # DisableRemoteTopic, and then the status
    "tiering.localRetention": (None, True),
    "tiering.localRetention.time": ("2h", True),
    "tiering.localRetention.size": ("2Gi", True),
    "tiering.maxLag": (None, True),
    "tiering.maxLag.time": ("20s", True),
    "tiering.maxLag.size": ("32Mi", True),
    "tiering.paused": (True, True),
}
#: A field of ``TopicState`` -> another value.
STATE_FIELDS: dict[str, object] = {
    "name": "other",
    "config": (control.ConfigEntry(name="retention.ms", value="1"),),
    "tiering_state": 1,
    "tiered_epoch": 7,
    "disable_policy": 1,
}


def _spec(path: str, value: object) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "tiering": {**TIERED, "localRetention": dict(LOCAL), "maxLag": dict(LAG)}
    }
    node, names = spec, path.split(".")
    for name in names[:-1]:
        node = node[name]
    node[names[-1]] = value
    return spec


def pushed_state(topic: Json) -> control.TopicState:
    return topic_state(topic_info(topic, {}), (), partition_count=1)


@pytest.mark.parametrize("path", FIELDS)
def test_changed_field_reaches_the_brokers(path: str) -> None:
    value, reaches_brokers = FIELDS[path]
    before, after = body(tiering=TIERED), body(**_spec(path, value))
    assert topic_info(before, {}) != topic_info(after, {})
    assert (pushed_state(before) != pushed_state(after)) == reaches_brokers


def test_every_field_of_the_manifest_is_covered() -> None:
    names = {"clusterRef"}  # immutable, and selects the operator
    models: list[tuple[str, type[BaseModel]]] = [
        ("", TopicSpec),
        ("tiering.", TopicTieringSpec),
        ("tiering.localRetention.", LocalRetentionSpec),
        ("tiering.maxLag.", MaxLagSpec),
    ]
    # The names of all fields come from the models, so that a new field fails here.
    for prefix, model in models:
        names |= {f"{prefix}{field.alias}" for field in model.model_fields.values()}
    assert names == {"clusterRef", *FIELDS}


@pytest.mark.parametrize(
    "status", [{"state": "Enabled", "epoch": 3}, {"state": "Disabling", "epoch": 4}]
)
def test_a_change_of_the_tiering_state_is_announced(status: Json) -> None:
    tiering = {"tiering": {**status, "policy": "Delete"}}
    assert pushed_state(body()) != pushed_state(body(status=tiering))


@pytest.mark.parametrize("field", STATE_FIELDS)
def test_a_broker_takes_a_change_of_each_field(field: str) -> None:
    state = pushed_state(body())
    cache = MetadataCache("c")
    cache.apply(partition_states(state))
    before = cache.by_id(state.topic_id)
    # The same state again is no change: the cache keeps its object.
    cache.apply(partition_states(state))
    assert cache.by_id(state.topic_id) is before
    change: Any = {field: STATE_FIELDS[field]}
    cache.apply(partition_states(dataclasses.replace(state, **change)))
    after = cache.by_id(state.topic_id)
    assert after is not before
    assert after != before


def test_every_field_of_the_message_is_covered() -> None:
    names = {field.name for field in dataclasses.fields(control.TopicState)}
    assert names == {"topic_id", "partitions", "partition_count", *STATE_FIELDS}
    assert pushed_state(body()).topic_id == uuid.UUID(int=5)
