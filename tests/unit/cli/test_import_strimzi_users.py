"""Strimzi's KafkaUsers: what each field becomes, and messages about what a User does not have."""

from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.strimzi import MetadataRule
from tidemark_cli.imports.strimzi_users import user_manifest
from tidemark_cli.imports.topics import ImportedManifest, ImportTarget, NotImported
from tidemark_cli.main import app
from tidemark_operator.resources.topic import DeletionPolicyName

SCRAM = {"type": "scram-sha-512"}
TARGET = ImportTarget(
    cluster="tidemark", namespace="tidemark", deletion_policy=DeletionPolicyName.ORPHAN
)


def body(name: str = "alice", meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {
            "name": name,
            "namespace": "kafka",
            "labels": {"strimzi.io/cluster": "my-cluster"},
            **(meta or {}),
        },
        "spec": {"authentication": SCRAM, **spec},
    }


def user_of(found: dict[str, Any]) -> ImportedManifest:
    return user_manifest(Document("here", found), TARGET, MetadataRule())


def spec_of(**spec: Any) -> dict[str, Any]:
    made: dict[str, Any] = user_of(body(**spec)).manifest["spec"]
    return made


def acls(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"authorization": {"type": "simple", "acls": list(rules)}}


def rule(type_: str = "topic", name: str = "orders", **other: Any) -> dict[str, Any]:
    pattern = {"patternType": other.pop("patternType")} if "patternType" in other else {}
    resource = {"type": type_, **({"name": name} if name else {}), **pattern}
    return {"resource": resource, "operations": ["Read"], **other}


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["import", "--strimzi", "-", *arguments], input=stdin)


# ---------------------------------------------------------------- authentication


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_password_is_copied_by_reference(version: str) -> None:
    user = user_of({**body(), "apiVersion": f"kafka.strimzi.io/{version}"})
    assert user.manifest["spec"]["authentication"] == {
        "type": "scram-sha-512",
        "password": {"valueFrom": {"secretKeyRef": {"name": "alice-password", "key": "password"}}},
    }
    copying, offering = user.commands
    assert copying == (
        "kubectl --namespace kafka get secret alice "
        "--output go-template='{{index .data \"password\" | base64decode}}' | "
        "kubectl --namespace tidemark create secret generic alice-password "
        "--from-file=password=/dev/stdin"
    )
    assert offering == (
        "kubectl --namespace tidemark annotate secret alice-password tidemark.dev/offered-to=User"
    )


def test_secret_of_the_users_own_password_is_copied() -> None:
    reference = {"secretKeyRef": {"name": "vault", "key": "alice.secret"}}
    user = user_of(body(authentication={**SCRAM, "password": {"valueFrom": reference}}))
    assert (
        'get secret vault --output go-template=\'{{index .data "alice.secret"' in user.commands[0]
    )


def test_secret_name_with_strimzis_prefix_is_read_from_the_status() -> None:
    user = user_of({**body(), "status": {"secret": "kafka-alice"}})
    assert "get secret kafka-alice " in user.commands[0]


def test_certificate_user_receives_a_new_certificate_and_the_old_authority_is_named() -> None:
    user = user_of(body(authentication={"type": "tls"}))
    assert user.manifest["spec"]["authentication"] == {"type": "tls"}
    assert "ca.crt of Strimzi's Secret my-cluster-clients-ca-cert" in user.remarks[0]
    assert user.commands == ()


def test_foreign_certificate_and_no_authentication_create_no_credentials() -> None:
    user = user_of(body(authentication={"type": "tls-external"}))
    assert user.manifest["spec"]["authentication"] == {"type": "tls-external"}
    assert "authority of its certificate" in user.remarks[0]
    user = user_of(body(authentication=None))
    assert user.manifest["spec"]["authentication"] == {"type": "oauth"}
    assert "has no authentication in Strimzi" in user.remarks[0]


def test_user_name_in_kafka_becomes_the_objects_name() -> None:
    assert user_of(body("u1", userName="orders-app")).name == "orders-app"


# ---------------------------------------------------------------- ACLs


def test_acls_keep_their_meaning() -> None:
    # One rule of each resource type, pattern, permission and kind of host.
    made = spec_of(
        **acls(
            rule(operations=["Read", "Describe"]),
            rule(name="orders-", patternType="prefix", operations=["Write"], host="*"),
            rule(name="audit", type="deny", operations=["All"], host="10.0.0.7"),
            rule("group", "*"),
            rule("cluster", "", operations=["IdempotentWrite"]),
            rule("transactionalId", "tx", patternType="literal", operations=["Write"]),
        )
    )
    assert made["authorization"]["acls"] == [
        {"resource": {"type": "Topic", "name": "orders"}, "operations": ["Read", "Describe"]},
        {
            "resource": {"type": "Topic", "name": "orders-", "patternType": "Prefixed"},
            "operations": ["Write"],
        },
        {
            "resource": {"type": "Topic", "name": "audit"},
            "operations": ["All"],
            "host": "10.0.0.7",
            "permission": "Deny",
        },
        {"resource": {"type": "Group", "name": "*"}, "operations": ["Read"]},
        {"resource": {"type": "Cluster"}, "operations": ["IdempotentWrite"]},
        {"resource": {"type": "TransactionalId", "name": "tx"}, "operations": ["Write"]},
    ]


def test_rules_of_one_operation_are_combined() -> None:
    single = [
        {"resource": {"type": "topic", "name": f"t{n}"}, "operation": operation}
        for n in range(100)
        for operation in ("Read", "Write", "Read")
    ]
    made = spec_of(**acls(*single))["authorization"]["acls"]
    assert len(made) == 100
    assert made[0]["operations"] == ["Read", "Write"]


@pytest.mark.parametrize(
    ("useless", "why"),
    [
        (rule(name="*", patternType="prefix"), "* is a plain character"),
        (rule(name="orders*"), "no topic has the name 'orders*'"),
        (rule(host="app.example"), "host 'app.example' is not an IP address"),
        (rule(host="fd00:0::7"), "canonical form of host fd00:0::7, fd00::7"),
        (rule("group", "g", operations=["Write"]), "no operation of it applies to a Group"),
    ],
)  # fmt: skip
def test_rule_that_matches_nothing_is_left_out_and_reported(
    useless: dict[str, Any], why: str
) -> None:
    user = user_of(body(**acls(useless, rule())))
    assert len(user.manifest["spec"]["authorization"]["acls"]) == 1
    (remark,) = (item for item in user.remarks if "rule 1 is left out" in item)
    assert why in remark
    assert "authorization" not in user_of(body(**acls(useless))).manifest["spec"]


def test_operation_that_kafka_ignores_is_left_out_and_reported() -> None:
    user = user_of(body(**acls(rule(operations=["Read", "ClusterAction"]))))
    assert user.manifest["spec"]["authorization"]["acls"][0]["operations"] == ["Read"]
    assert any("ClusterAction left out" in item for item in user.remarks)


# ---------------------------------------------------------------- quotas and other fields


def test_quotas_are_copied() -> None:
    quotas = {"producerByteRate": 1048576, "consumerByteRate": 2097152, "requestPercentage": 55}
    assert spec_of(quotas=quotas)["quotas"] == quotas
    assert "quotas" not in spec_of(quotas={})


def test_quota_that_is_rounded_is_reported() -> None:
    user = user_of(body(quotas={"controllerMutationRate": 0.5, "producerByteRate": 0, "x": 1}))
    assert user.manifest["spec"]["quotas"] == {"controllerMutationRate": 1, "producerByteRate": 1}
    said = " ".join(user.remarks)
    assert "controllerMutationRate 0.5 became 1" in said
    assert "producerByteRate 0 became 1" in said
    assert "spec.quotas.x is not a known quota" in said


def test_fields_without_counterpart_are_reported() -> None:
    meta = {"annotations": {"strimzi.io/pause-reconciliation": "true"}, "deletionTimestamp": "now"}
    user = user_of(body(meta=meta, template={"secret": {}}, extra=1))
    assert user.remarks[1:] == (
        "spec.extra is not a known field of a KafkaUser; left out",
        "spec.template has no counterpart; left out",
        "is paused in Strimzi; the User is not",
        "is being deleted in Strimzi",
    )


def test_only_labels_of_users_are_copied() -> None:
    labels = {"strimzi.io/cluster": "c", "app.kubernetes.io/managed-by": "Helm", "team": "shop"}
    annotations = {"argocd.argoproj.io/tracking-id": "x", "contact": "them"}
    user = user_of(body(meta={"labels": labels, "annotations": annotations}))
    assert user.manifest["metadata"] == {
        "name": "alice",
        "namespace": "tidemark",
        "labels": {"team": "shop"},
        "annotations": {"contact": "them"},
    }


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (body(apiVersion="x") | {"apiVersion": "kafka.strimzi.io/v1alpha1"}, "is not supported"),
        (body(authentication={"type": "kerberos"}), "spec.authentication.type 'kerberos'"),
        (body(authentication=["tls"]), "spec.authentication is not a map"),
        (body("a" * 65, authentication={"type": "tls"}), "at most 64 characters"),
        (body("my-tls"), "ends with -ca or -tls"),
        (body(userName="Orders App"), "'Orders App' is not a valid object name"),
        (body("a; rm -rf /"), "is not a valid object name"),
        (body(meta={"namespace": "a\nb"}), "is not the name of a namespace"),
        ({**body(), "status": {"secret": "$(id)"}}, "is not the name of a Secret"),
        (
            body(
                authentication={
                    **SCRAM,
                    "password": {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b'"}}},
                }
            ),
            "is not a key of a Secret",
        ),
        (body(authorization={"type": "opa"}), "spec.authorization.type 'opa'"),
        (body(authorization={"type": "simple", "acls": [1]}), "acls is not a list of rules"),
        (body(**acls(rule("delegationToken"))), "resource type 'delegationToken'"),
        (body(**acls(rule(name=""))), "rule 1: resource.name is missing"),
        (body(**acls(rule(patternType="any"))), "patternType 'any'"),
        (body(**acls(rule(operations=[]))), "operations are missing"),
        (body(**acls(rule(operations=["Fly"]))), "'Fly'"),
        (body(**acls(rule(type="maybe"))), "type 'maybe' is not allow or deny"),
        (body(**acls(*(rule(name=f"t{n}") for n in range(101)))), "at most 100 ACLs"),
        (body(quotas={"producerByteRate": "fast"}), "producerByteRate 'fast'"),
        (body(quotas={"producerByteRate": float("inf")}), "producerByteRate inf"),
        (body(quotas={"requestPercentage": 100001}), "less than or equal to 100000"),
    ],
)  # fmt: skip
def test_user_that_no_manifest_can_express_is_refused(found: dict[str, Any], why: str) -> None:
    with pytest.raises(NotImported, match=why):
        user_of(found)


# ---------------------------------------------------------------- the command


def test_topics_and_users_are_written_together_and_secrets_never() -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "alice"},
        "data": {"password": "cGxhbnRlZA=="},
    }
    topic = {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": "orders", "labels": {"strimzi.io/cluster": "my-cluster"}},
        "spec": {"partitions": 1, "replicas": 1},
    }
    labels = {"strimzi.io/cluster": "my-cluster", "helm.sh/chart": "x"}
    alice = body(meta={"labels": labels})
    found = yaml.safe_dump_all([secret, topic, alice, body("bob", quotas=7), body()])
    done = run("--namespace", "tidemark", stdin=found)
    assert done.exit_code == 1
    made = list(yaml.safe_load_all(done.stdout))
    assert [(item["kind"], item["metadata"]["name"]) for item in made] == [
        ("Topic", "orders"),
        ("User", "alice"),
    ]
    # Commands are complete lines of the comment, to be copied.
    assert user_of(alice).commands[0] in [line.strip("# ") for line in done.stdout.splitlines()]
    assert "label helm.sh/chart of 1 KafkaUser is not copied" in done.stderr
    assert "KafkaUser bob: spec.quotas is not a map" in done.stderr
    assert "KafkaUser alice also is alice" in done.stderr
    assert done.stderr.endswith(
        "1 Topic, 0 with the id of the topic to adopt; 1 User; 2 not imported\n"
        "the others create new topics, or wait for adoption if their topics exist: see "
        "docs/how-to/migrate.md\n"
    )
    for text in ("cGxhbnRlZA==", "planted"):
        assert text not in done.stdout + done.stderr


def test_users_of_other_clusters_are_left_out() -> None:
    other = body("bob", meta={"labels": {"strimzi.io/cluster": "other"}})
    done = run(stdin=yaml.safe_dump_all([body(), other]))
    assert "several clusters, my-cluster, other: choose one" in " ".join(done.stderr.split())
    done = run("--strimzi-cluster", "other", stdin=yaml.safe_dump_all([body(), other]))
    assert [item["metadata"]["name"] for item in yaml.safe_load_all(done.stdout)] == ["bob"]
