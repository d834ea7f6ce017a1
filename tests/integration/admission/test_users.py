"""Users and the Cluster's authorization: accepted and refused manifests, with their messages."""

import re
from pathlib import Path

import pytest
import yaml

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    acl,
    cluster,
    edited,
    user,
)
from tidemark_operator.resources.user import ACLS_MAX, OPERATIONS, OperationName

PASSWORD = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "alice.password"}}}


def with_acls(*acls: Object) -> Object:
    return user(authorization={"acls": list(acls)})


def named(name: str, type_: str) -> Object:
    return edited(user(authentication={"type": type_}), "metadata.name", name)


# Every kind of authentication, ACL and quota.
ACCEPTED: dict[str, Object] = {
    "nothing but the cluster": user(),
    "a password from the user's own Secret": user(
        authentication={"type": "scram-sha-256", "password": PASSWORD}
    ),
    "a password without a type": user(authentication={"password": PASSWORD}),
    "a certificate": user(authentication={"type": "tls"}),
    "a certificate of another authority": user(authentication={"type": "tls-external"}),
    "a token": user(authentication={"type": "oauth"}),
    "no ACL": with_acls(),
    "ACLs of every kind": with_acls(
        acl("Topic", "Read", "Describe", resource={"name": "orders-", "patternType": "Prefixed"}),
        acl("Topic", "Write", resource={"name": "orders-paid", "patternType": "Literal"}),
        acl("Group", "Read", host="10.0.0.7"),
        acl("Group", "All", host="fd00::7", permission="Deny"),
        acl("Cluster", "IdempotentWrite", host="*", permission="Allow"),
        acl("TransactionalId", "Write", resource={"name": "a b"}),
    ),
    # The limit itself is accepted.
    "as many ACLs as there may be": with_acls(*([acl("Topic", "Read")] * ACLS_MAX)),
    "quotas": user(
        quotas={
            "producerByteRate": 1,
            "consumerByteRate": 2**40,
            "requestPercentage": 250,
            "controllerMutationRate": 5,
            "clients": [{"clientId": "etl", "producerByteRate": 5}],
        }
    ),
    # 253 characters is the limit of object names, 64 that of a certificate's common name.
    "the longest name with a password": named("u" * 253, "scram-sha-512"),
    "the longest name with a certificate": named("u" * 64, "tls"),
    "authorization": cluster(
        authorization={"type": "simple", "superUsers": ["admin", "CN=deploy"]}
    ),
    "authorization without super users": cluster(authorization={"type": "simple"}),
}

REFUSED: dict[str, tuple[Object, str]] = {
    "unknown authentication": (
        user(authentication={"type": "plain"}),
        'supported values: "scram-sha-512", "scram-sha-256", "tls", "tls-external", "oauth"',
    ),
    "password of a certificate's user": (
        user(authentication={"type": "tls", "password": PASSWORD}),
        "password requires type scram-sha-512 or scram-sha-256",
    ),
    "password in the manifest": (
        user(authentication={"password": "secret"}),
        "spec.authentication.password",
    ),
    "Secret that is a path": (
        user(
            authentication={
                "password": {"valueFrom": {"secretKeyRef": {"name": "../a/b", "key": "k"}}}
            }
        ),
        "secretKeyRef.name",
    ),
    "Secret of another namespace": (
        edited(
            user(authentication={"password": PASSWORD}),
            "spec.authentication.password.valueFrom.secretKeyRef",
            {"name": "keys"},
        ),
        "secretKeyRef.key: Required value",
    ),
    "name of an authority's Secret": (
        edited(user(), "metadata.name", "demo-clients-ca"),
        "names that end with -ca or -tls are reserved for Secrets of the operator",
    ),
    "name of a broker's Secret": (
        edited(user(), "metadata.name", "broker-1-tls"),
        "names that end with -ca or -tls are reserved for Secrets of the operator",
    ),
    "name too long for a certificate": (
        named("u" * 65, "tls"),
        "the name of a user with a certificate has at most 64 characters",
    ),
    "name too long for another's certificate": (
        named("u" * 65, "tls-external"),
        "the name of a user with a certificate has at most 64 characters",
    ),
    "no resource": (with_acls({"operations": ["Read"]}), "resource: Required value"),
    "no operation": (
        with_acls({**acl(), "operations": []}),
        "operations in body should have at least 1 items",
    ),
    "operation twice": (with_acls(acl("Topic", "Read", "Read")), "Duplicate value"),
    "a topic without a name": (
        with_acls({"resource": {"type": "Topic"}, "operations": ["Read"]}),
        "name is required for Topic, Group and TransactionalId and must be unset for Cluster",
    ),
    "a Cluster with a name": (
        with_acls(acl("Cluster", "Create", resource={"name": "kafka-cluster"})),
        "name is required for Topic, Group and TransactionalId and must be unset for Cluster",
    ),
    "a prefix that is everything": (
        with_acls(acl("Topic", "Read", resource={"patternType": "Prefixed"})),
        "name '*' requires patternType Literal",
    ),
    "a prefix of the Cluster": (
        with_acls(acl("Cluster", "Create", resource={"patternType": "Prefixed"})),
        "name '*' requires patternType Literal",
    ),
    "a pattern as a topic's name": (
        with_acls(acl("Topic", "Read", resource={"name": "orders-*"})),
        "a topic name contains only letters, digits, '.', '_' and '-'",
    ),
    "a host's name": (with_acls(acl(host="example.org")), "host is '*' or one IP address"),
    "a network": (with_acls(acl(host="10.0.0.0/8")), "host is '*' or one IP address"),
    "an address in a longer form": (
        with_acls(acl(host="fd00:0::7")),
        "host is '*' or one IP address in canonical form, such as 10.0.0.7 or fd00::7",
    ),
    "too many ACLs": (
        with_acls(*([acl()] * (ACLS_MAX + 1))),
        f"must have at most {ACLS_MAX} items",
    ),
    "quota of nothing": (
        user(quotas={"producerByteRate": 0}),
        "should be greater than or equal to 1",
    ),
    "quotas without any": (
        user(quotas={}),
        "controllerMutationRate and clients is required",
    ),
    "a client id without any": (
        user(quotas={"clients": [{"clientId": "etl"}]}),
        "requestPercentage and controllerMutationRate is required",
    ),
    "a client id twice": (
        cluster(quotas={"clients": [{"clientId": "etl", "producerByteRate": n} for n in (1, 2)]}),
        "Duplicate value",
    ),
    "another authorizer": (
        cluster(authorization={"type": "opa"}),
        'supported values: "simple"',
    ),
    "super user with its type": (
        cluster(authorization={"type": "simple", "superUsers": ["User:admin"]}),
        "a super user is the User's status.username, without the prefix User:",
    ),
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(api: AdmissionApi, body: Object) -> None:
    # A dry run: nothing is stored.
    api.try_create(body)


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(api: AdmissionApi, body: Object, message: str) -> None:
    with pytest.raises(AdmissionRefused) as refusal:
        api.try_create(body)
    assert message in str(refusal.value)


@pytest.mark.parametrize("type_", OPERATIONS)
def test_resource_type_supports_only_its_operations(api: AdmissionApi, type_: str) -> None:
    """As in Kafka's ``AclEntry.supportedOperations``."""
    for operation in OperationName:
        # All is valid for each type; other operations only for some.
        known = operation is OperationName.ALL or operation in OPERATIONS[type_]
        body = with_acls(acl(type_, operation))
        if known:
            api.try_create(body)
            continue
        with pytest.raises(AdmissionRefused, match=f"operations of a {type_} are All, "):
            api.try_create(body)


def test_manifests_of_the_security_page_are_accepted(api: AdmissionApi) -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "security.md").read_text("utf-8")
    manifests = [yaml.safe_load(text) for text in re.findall(r"(?ms)^```yaml\n(.*?)^```", page)]
    # The page's manifests must stay valid when the schema changes.
    assert [body["kind"] for body in manifests] == ["Cluster", "User"]
    for body in manifests:
        api.try_create(body)
