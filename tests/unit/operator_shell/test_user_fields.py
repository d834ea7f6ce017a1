"""Every field of a User, in Kafka's numbers and keys."""

from typing import Any

import pytest

from tests.user_states import quota
from tidemark.wire.users import Acl
from tidemark_operator.controller.users import UserInfo
from tidemark_operator.objects.quotas import cluster_quotas
from tidemark_operator.objects.users import user_info
from tidemark_operator.resources.acls import OperationName
from tidemark_operator.resources.quotas import ClusterQuotas

CREATED = "2023-11-14T22:13:20Z"


def info(name: str = "alice", **spec: Any) -> UserInfo:
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": "6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa",
        "generation": 3,
        "creationTimestamp": CREATED,
    }
    return user_info({"metadata": meta, "spec": {"clusterRef": {"name": "main"}, **spec}})


def acls(**rule: Any) -> tuple[Acl, ...]:
    base = {"resource": {"type": "Topic", "name": "t"}, "operations": ["Read"]}
    return info(authorization={"acls": [base | rule]}).acls


def test_what_is_left_out_is_what_the_schema_says() -> None:
    found = info()
    assert found == UserInfo(
        key="ns/alice",
        uid="6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa",
        username="alice",
        generation=3,
        created_ms=1_700_000_000_000,
        mechanism=2,
    )
    assert acls() == (
        Acl(
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            host="*",
            operation=3,
            permission=3,
        ),
    )


@pytest.mark.parametrize(
    ("type_", "username", "mechanism", "certificate"),
    [
        ("scram-sha-256", "alice", 1, False),
        ("scram-sha-512", "alice", 2, False),
        ("tls", "CN=alice", 0, True),
        ("tls-external", "CN=alice", 0, False),
        ("oauth", "alice", 0, False),
    ],
)
def test_how_a_user_proves_itself(
    type_: str, username: str, mechanism: int, certificate: bool
) -> None:
    found = info(authentication={"type": type_})
    assert (found.username, found.mechanism, found.certificate) == (
        username,
        mechanism,
        certificate,
    )


def test_a_password_of_another_owner() -> None:
    ref = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}
    assert info(authentication={"password": ref}).password_ref == ("keys", "k")


@pytest.mark.parametrize(("type_", "number"), [("Topic", 2), ("Group", 3), ("TransactionalId", 5)])
def test_types_of_resources_are_kafkas(type_: str, number: int) -> None:
    (found,) = acls(resource={"type": type_, "name": "x", "patternType": "Prefixed"})
    assert (found.resource_type, found.resource_name, found.pattern_type) == (number, "x", 4)


def test_the_cluster_has_kafkas_name() -> None:
    (found,) = acls(resource={"type": "Cluster"}, operations=["Create"])
    assert (found.resource_type, found.resource_name, found.pattern_type) == (4, "kafka-cluster", 3)


def test_operations_are_kafkas_and_each_is_an_acl() -> None:
    """The order of Kafka's ``AclOperation``, from ALL (2) on."""
    assert [acl.operation for acl in acls(operations=[*OperationName])] == list(range(2, 13))


def test_hosts_and_permissions_and_doubles() -> None:
    (found,) = acls(host="10.0.0.7", permission="Deny")
    assert (found.host, found.permission) == ("10.0.0.7", 2)
    rule = {"resource": {"type": "Topic", "name": "t"}, "operations": ["Read"]}
    assert len(info(authorization={"acls": [rule, {**rule, "host": "*"}]}).acls) == 1


def test_quotas_are_of_the_user_and_of_its_clients() -> None:
    rates = {"producerByteRate": 5, "consumerByteRate": 6, "requestPercentage": 7}
    rates["controllerMutationRate"] = 4
    clients = [{"clientId": "etl", "producerByteRate": 8}, {"clientId": "*", "consumerByteRate": 9}]
    found = info(quotas={**rates, "clients": clients}).quotas
    assert found == (
        quota("alice", None, produce=5, fetch=6, request=7, mutation=4),
        quota("alice", "etl", produce=8),
        quota("alice", "", fetch=9),
    )
    assert info(quotas={"clients": clients[:1]}).quotas == found[1:2]
    assert info(quotas={"controllerMutationRate": 4}).quotas == (quota("alice", None, mutation=4),)


def test_a_clusters_quotas_apply_to_users_without_their_own() -> None:
    given = {
        "everyUser": {
            "requestPercentage": 7,
            "clients": [{"clientId": "*", "producerByteRate": 8}],
        },
        "clients": [
            {"clientId": "*", "consumerByteRate": 9},
            {"clientId": "a", "producerByteRate": 1},
        ],
    }
    assert cluster_quotas(ClusterQuotas.model_validate(given)) == (
        quota("", None, request=7),
        quota("", "", produce=8),
        quota(None, "", fetch=9),
        quota(None, "a", produce=1),
    )
    assert cluster_quotas(None) == ()
