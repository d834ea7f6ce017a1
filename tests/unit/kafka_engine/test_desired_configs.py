"""Desired configuration of a topic of Apache Kafka, in each state of its tiering."""

import uuid

import pytest

from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering, TieringState
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.engines.kafka.desired_configs import (
    DesiredConfigs,
    difference,
    in_force,
    of_topic,
    throttles,
)

ENABLED = Tiering(TieringState.ENABLED, 0)
RETAIN = Tiering(TieringState.DISABLING, 1, DisablePolicy.RETAIN)
DELETE = Tiering(TieringState.DISABLED, 1, DisablePolicy.DELETE)


def topic(**config: str) -> TopicInfo:
    keys = {name.replace("_", "."): value for name, value in config.items()}
    return TopicInfo(
        key="ns/t",
        uid=uuid.UUID(int=1),
        name="t",
        generation=1,
        partitions=1,
        replication_factor=1,
        config={"remote.storage.enable": "false", **keys},
    )


def test_an_untiered_topic_has_what_its_manifest_names() -> None:
    assert of_topic(topic(retention_ms="7"), NEVER_TIERED).values == {"retention.ms": "7"}


@pytest.mark.parametrize(
    ("tiering", "values", "absent"),
    [
        (
            ENABLED,
            {"remote.storage.enable": "true", "local.retention.ms": "5"},
            {"remote.log.copy.disable", "remote.log.delete.on.disable"},
        ),
        (
            RETAIN,
            {
                "remote.storage.enable": "true",
                "remote.log.copy.disable": "true",
                "local.retention.ms": "-2",
                "local.retention.bytes": "-2",
            },
            {"remote.log.delete.on.disable"},
        ),
        (
            DELETE,
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
            {"remote.log.copy.disable", "local.retention.ms", "local.retention.bytes"},
        ),
    ],
    ids=["enabled", "retain", "delete"],
)
def test_policies_are_expressed_by_kafkas_two_switches(
    tiering: Tiering, values: dict[str, str], absent: set[str]
) -> None:
    own = {"tidemark_remote_copy_max_lag_ms": "10000", "tidemark_remote_copy_paused": "true"}
    found = of_topic(topic(local_retention_ms="5", **own), tiering)
    assert (found.values, set(found.absent)) == (values, absent)


def test_only_differences_and_managed_keys_are_altered() -> None:
    desired = DesiredConfigs({"retention.ms": "7", "cleanup.policy": "compact,delete"})
    own = {"retention.ms": "8", "cleanup.policy": "delete, compact", "a": "1", "b": "2"}
    # Key `a` was set by the operator, and `b` elsewhere. The order of a list is no difference.
    found = difference(own, desired, {"retention.ms", "a"})
    assert (dict(found.set), found.unset) == ({"retention.ms": "7"}, ("a",))
    assert not difference({"retention.ms": "007"}, DesiredConfigs({"retention.ms": "7"}), ())


def test_equivalent_values_are_left_unchanged() -> None:
    own = {"remote.storage.enable": "true", "remote.log.copy.disable": "false"}
    assert not difference(own, of_topic(topic(), ENABLED), ())
    retained = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
    assert not difference(retained, of_topic(topic(), RETAIN), ())
    # A change from enabled to retained sets the local retention too.
    begun = difference({"remote.storage.enable": "true"}, of_topic(topic(), RETAIN), ())
    assert begun.set["local.retention.ms"] == "-2"
    again = difference(retained, of_topic(topic(), ENABLED), ())
    assert again.unset == ("remote.log.copy.disable",)


def test_a_disablement_is_in_force_once_both_switches_say_so() -> None:
    assert in_force(RETAIN, {"remote.storage.enable": "true", "remote.log.copy.disable": "true"})
    assert not in_force(RETAIN, {"remote.storage.enable": "true"})
    assert not in_force(DELETE, {"remote.storage.enable": "true"})


def test_sources_and_targets_of_a_move_are_throttled() -> None:
    assert throttles([(1, (2, 1), (3,)), (0, (1,), (2,))]) == {
        "leader.replication.throttled.replicas": "0:1,1:1,1:2",
        "follower.replication.throttled.replicas": "0:2,1:3",
    }
    assert throttles([(0, (1,), ())]) == {}


def test_managed_key_is_removed_although_not_observed() -> None:
    """The observation may be older than the request that set the key."""
    found = difference({}, DesiredConfigs({"retention.ms": "7"}), {"retention.ms", "flush.ms"})
    assert (dict(found.set), found.unset) == ({"retention.ms": "7"}, ("flush.ms",))
