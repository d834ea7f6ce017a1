"""Every field of a User, in Kafka's numbers and keys."""

from typing import Any

import pytest

from tests.user_states import quota
from tidemark.wire.users import Acl
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.objects.quotas import cluster_quotas
from tidemark_operator.objects.users import user_info
from tidemark_operator.resources.quotas import ClusterQuotas
from tidemark_operator.resources.user import OperationName

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


def test_omitted_fields_have_the_defaults_of_the_schema() -> None:
    found = info()
    assert found == UserInfo(
        key="ns/alice",
        uid="6f0c0a1e-54d4-4a55-8b43-3ff3d9a0f0aa",
        username="alice",
        generation=3,
        created_ms=1_700_000_000_000,
        mechanism=2,
    )
    # The numbers are those of Kafka's ResourceType, PatternType, AclOperation and
    # AclPermissionType.
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
def test_authentication_type_determines_name_and_mechanism(
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
    # Kafka's Resource.CLUSTER_NAME.
    assert (found.resource_type, found.resource_name, found.pattern_type) == (4, "kafka-cluster", 3)


def test_operations_have_kafkas_numbers() -> None:
    """The order of Kafka's ``AclOperation``, from ALL (2) on."""
    assert [acl.operation for acl in acls(operations=[*OperationName])] == list(range(2, 13))


def test_host_and_permission_are_mapped_and_duplicates_removed() -> None:
    (found,) = acls(host="10.0.0.7", permission="Deny")
    assert (found.host, found.permission) == ("10.0.0.7", 2)
    rule = {"resource": {"type": "Topic", "name": "t"}, "operations": ["Read"]}
    # The default host makes both rules the same ACL.
    assert len(info(authorization={"acls": [rule, {**rule, "host": "*"}]}).acls) == 1


def test_quotas_cover_the_user_and_its_clients() -> None:
    rates = {"producerByteRate": 5, "consumerByteRate": 6, "requestPercentage": 7}
    rates["controllerMutationRate"] = 4
    clients = [{"clientId": "etl", "producerByteRate": 8}, {"clientId": "*", "consumerByteRate": 9}]
    found = info(quotas={**rates, "clients": clients}).quotas
    # The client id "" is Kafka's default entity, None is no client id.
    assert found == (
        quota("alice", None, produce=5, fetch=6, request=7, mutation=4),
        quota("alice", "etl", produce=8),
        quota("alice", "", fetch=9),
    )
    assert info(quotas={"clients": clients[:1]}).quotas == found[1:2]
    assert info(quotas={"controllerMutationRate": 4}).quotas == (quota("alice", None, mutation=4),)


def test_a_clusters_quotas_apply_to_users_without_their_own() -> None:
    quotas = {
        "everyUser": {
            "requestPercentage": 7,
            "clients": [{"clientId": "*", "producerByteRate": 8}],
        },
        "clients": [
            {"clientId": "*", "consumerByteRate": 9},
            {"clientId": "a", "producerByteRate": 1},
        ],
    }
    assert cluster_quotas(ClusterQuotas.model_validate(quotas)) == (
        quota("", None, request=7),
        quota("", "", produce=8),
        quota(None, "", fetch=9),
        quota(None, "a", produce=1),
    )
    assert cluster_quotas(None) == ()
