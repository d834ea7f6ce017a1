"""Strimzi's KafkaTopics: what each field becomes, and messages about invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark_cli.imports import strimzi
from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.strimzi import Defaults
from tidemark_cli.imports.topics import ImportedTopic, NotImported
from tidemark_cli.main import app

ID = "4lTQvW1oS7-gC3B5IgwPmA"


def body(name: str = "orders", cluster: str = "my-cluster", **changed: Any) -> dict[str, Any]:
    usual = {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": {"partitions": 3, "replicas": 2},
    }
    return {**usual, **changed}


def spec(**changed: Any) -> dict[str, Any]:
    return body(spec={"partitions": 3, "replicas": 2, **changed})


def topic_of(found: dict[str, Any], **defaults: int) -> ImportedTopic:
    return strimzi.imported_topic(Document("here", found), Defaults(**defaults))


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["import", *arguments], input=stdin)


def stderr_of(done: Result) -> str:
    """Return the standard error as one line."""
    return " ".join(done.stderr.split())


def text(*bodies: dict[str, Any]) -> str:
    return yaml.safe_dump_all(bodies)


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_both_versions_are_read(version: str) -> None:
    found = topic_of(body(apiVersion=f"kafka.strimzi.io/{version}"))
    assert (found.name, found.partitions, found.replication_factor) == ("orders", 3, 2)
    assert found.remarks == ()


@pytest.mark.parametrize(
    ("value", "as_text"),
    [
        (604800000, "604800000"),
        ("604800000", "604800000"),
        (True, "true"),
        (False, "false"),
        (0.5, "0.5"),
        ("delete", "delete"),
        (["compact", "delete"], "compact,delete"),
    ],
)
def test_values_are_as_strimzi_passes_them_to_kafka(value: object, as_text: str) -> None:
    assert topic_of(spec(config={"key": value})).config == {"key": as_text}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (body(apiVersion="kafka.strimzi.io/v1alpha1"), "strimzi.io/v1 and kafka.strimzi"),
        (body(metadata={}), "metadata.name is missing"),
        (body(metadata=[]), "metadata is not a map"),
        (body(spec="x"), "spec is not a map"),
        (body(spec={"replicas": 1}), "spec.partitions is missing.*--default-partitions"),
        (body(spec={"partitions": 1}), "spec.replicas is missing.*--default-replicas"),
        (spec(partitions=0), "spec.partitions 0 is not an integer of at least 1"),
        (spec(partitions=True), "spec.partitions True is not an integer"),
        (spec(replicas="three"), "spec.replicas 'three' is not an integer"),
        (spec(topicName=7), "spec.topicName 7 is not text"),
        (spec(config=["a"]), "spec.config is not a map"),
        (spec(config={"a": None}), "spec.config.a None is not text"),
        (spec(config={"a": {"b": 1}}), "spec.config.a {'b': 1} is not text"),
    ],
)  # fmt: skip
def test_unreadable_field_is_named(found: dict[str, Any], why: str) -> None:
    with pytest.raises(NotImported, match=why):
        topic_of(found)


def test_defaults_of_brokers_are_given_by_options() -> None:
    found = topic_of(body(spec={}), partitions=6, replication_factor=3)
    assert (found.partitions, found.replication_factor) == (6, 3)
    assert topic_of(body(spec=None), partitions=6, replication_factor=3).partitions == 6


def test_the_name_in_kafka_is_kept_beside_the_objects() -> None:
    found = topic_of(spec(topicName="Orders_1"))
    assert (found.object_name, found.name) == ("orders", "Orders_1")


def test_the_id_in_strimzis_topic_is_adopted() -> None:
    assert topic_of(body(status={"topicId": ID})).topic_id == ID
    assert topic_of(body(status={"topicId": "nonsense"})).topic_id == ""
    assert topic_of(body(status=None)).topic_id == ""


#: Keys by which tools recognize the objects that they manage, and prune what they do not find.
OWNERSHIP = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "applyset.kubernetes.io/part-of",
    "applyset.kubernetes.io/id",
    "argocd.argoproj.io/instance",
    "argocd.argoproj.io/tracking-id",
    "cli-utils.sigs.k8s.io/inventory-id",
    "config.k8s.io/owning-inventory",
    "config.kubernetes.io/origin",
    "configmanagement.gke.io/managed",
    "configsync.gke.io/resource-id",
    "crossplane.io/composite",
    "crossplane.io/external-name",
    "fluxcd.io/sync-gc-mark",
    "helm.sh/chart",
    "helm.toolkit.fluxcd.io/name",
    "internal.config.kubernetes.io/previousNames",
    "kapp.k14s.io/app",
    "kapp.k14s.io/association",
    "kluctl.io/discriminator",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kustomize.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/namespace",
    "meta.helm.sh/release-name",
    "objectset.rio.cattle.io/hash",
    "olm.managed",
    "olm.owner",
    "olm.owner.namespace",
    "operators.coreos.com/kafka.default",
    "pulumi.com/patchForce",
    "release",
    "heritage",
    "strimzi.io/cluster",
    "tanka.dev/environment",
    "tool.that.nobody.knows/owner",
    "velero.io/backup-name",
]


@pytest.mark.parametrize("key", OWNERSHIP)
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_keys_by_which_tools_recognize_their_objects_are_not_copied(where: str, key: str) -> None:
    found = topic_of(body(metadata={"name": "orders", where: {key: "x", "team": "shop"}}))
    copied = {"labels": found.labels, "annotations": found.annotations}
    assert copied == {"labels": {}, "annotations": {}, where: {"team": "shop"}}


def test_a_topic_has_no_owner_and_no_finalizer_of_its_kafka_topic() -> None:
    meta = {
        "name": "orders",
        "labels": {"strimzi.io/cluster": "my-cluster", "team": "shop"},
        "annotations": {"contact": "them", "kubectl.kubernetes.io/last-applied-configuration": "1"},
        "ownerReferences": [{"kind": "Composite", "name": "x"}],
        "finalizers": ["strimzi.io/topic-operator"],
        "managedFields": [{"manager": "argocd-controller"}],
        "uid": "1",
    }
    done = run("--strimzi", "-", stdin=text(body(metadata=meta)))
    (made,) = yaml.safe_load_all(done.stdout)
    assert made["metadata"] == {
        "name": "orders",
        "labels": {"team": "shop"},
        "annotations": {"contact": "them"},
    }
    assert "metadata.ownerReferences of 1 KafkaTopic is not copied" in stderr_of(done)
    assert "last-applied" not in stderr_of(done)  # Every applied object has this annotation.


def test_what_is_not_copied_is_reported_once_and_can_be_copied_by_name() -> None:
    labels = {"app.kubernetes.io/instance": "shop", "cost.center": "7", "team": "shop"}
    topics = text(
        body("a", metadata={"name": "a", "labels": labels}),
        body("b", metadata={"name": "b", "labels": labels}),
    )
    done = run("--strimzi", "-", stdin=topics)
    assert done.stderr.count("label app.kubernetes.io/instance of 2 KafkaTopics is not") == 1
    done = run(
        "--strimzi", "-", "--keep-metadata", "cost.center", "--drop-metadata", "team", stdin=topics
    )
    made = list(yaml.safe_load_all(done.stdout))
    assert [item["metadata"]["labels"] for item in made] == [{"cost.center": "7"}] * 2
    assert "cost.center" not in stderr_of(done)


@pytest.mark.parametrize(
    "name",
    [
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
        "__strimzi_store_topic",
        "__strimzi-topic-operator-kstreams-topic-store-changelog",
        "__connect-offsets",
        "__CruiseControlMetrics",
    ],
)
def test_internal_topics_are_skipped_with_a_message(name: str) -> None:
    # Strimzi named such an object by a hash, and left out what the broker decides.
    internal = body("internal---84e7a678", spec={"topicName": name})
    done = run("--strimzi", "-", stdin=text(internal, body()))
    assert done.exit_code == 0, done.stderr
    assert [
        safe_load_item["metadata"]["name"] for safe_load_item in yaml.safe_load_all(done.stdout)
    ] == ["orders"]
    assert f"KafkaTopic internal---84e7a678: skipped, since {name} is an internal" in stderr_of(
        done
    )
    done = run("--strimzi", "-", "--topics", "orders", stdin=text(internal, body()))
    assert "skipped" not in stderr_of(done)


def test_topics_of_users_with_one_underscore_are_imported() -> None:
    names = ["_schemas", "connect-cluster-offsets", "strimzi.a__b", "mm2-offsets.x.internal"]
    bodies = [
        body(f"t{n}", spec={"topicName": name, "partitions": 1, "replicas": 1})
        for n, name in enumerate(names)
    ]
    done = run("--strimzi", "-", stdin=text(*bodies))
    assert [
        safe_load_item["spec"]["topicName"] for safe_load_item in yaml.safe_load_all(done.stdout)
    ] == names


@pytest.mark.parametrize(
    "annotation", [{"strimzi.io/managed": "false"}, {"strimzi.io/pause-reconciliation": "true"}]
)
def test_unmanaged_topics_are_paused(annotation: dict[str, str]) -> None:
    found = topic_of(body(metadata={"name": "orders", "annotations": annotation}))
    assert found.is_paused


def test_new_topics_are_not_adopted_and_not_paused() -> None:
    annotations = {"strimzi.io/managed": "false"}
    found = spec(config={"compression.type": "zstd"})
    found |= {
        "metadata": {"name": "orders", "annotations": annotations},
        "status": {"topicId": ID},
    }
    done = run("--strimzi", "-", stdin=text(found))
    (made,) = yaml.safe_load_all(done.stdout)
    assert made["metadata"]["annotations"] == {ADOPT_TOPIC_ID: ID, "tidemark.dev/paused": "true"}
    done = run("--strimzi", "-", "--new-topics", stdin=text(found))
    (made,) = yaml.safe_load_all(done.stdout)
    assert "annotations" not in made["metadata"]
    assert "left out, so the new topic has the default" in stderr_of(done)
    assert stderr_of(done).endswith("1 Topic")


def test_unknown_fields_are_reported() -> None:
    found = topic_of(spec(extra=1))
    assert found.remarks == ("spec.extra is not a known field of a KafkaTopic; left out",)


# ---------------------------------------------------------------- the command


def test_files_folders_lists_and_the_standard_input(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    # Hidden folders and files with other endings are not read.
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yaml").write_text("{", encoding="utf-8")
    (tmp_path / "a.yml").write_text(f"---\n{text(body('a'), body('b'))}---\n", encoding="utf-8")
    (tmp_path / "deep" / "c.json").write_text(json.dumps(body("c")), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("{", encoding="utf-8")
    listed = {"apiVersion": "v1", "kind": "List", "items": [body("d"), body("e")]}
    (tmp_path / "deep" / "list.yaml").write_text(text(listed), encoding="utf-8")
    done = run("--strimzi", str(tmp_path), "--strimzi", "-", stdin=text(body("f")))
    made = list(yaml.safe_load_all(done.stdout))
    assert [item["metadata"]["name"] for item in made] == ["a", "b", "c", "d", "e", "f"]
    assert done.exit_code == 0
    assert "6 Topics, 0 with the id" in stderr_of(done)


def test_omissions_are_reported_and_failures_counted() -> None:
    other = {"apiVersion": "kafka.strimzi.io/v1", "kind": "KafkaConnect", "metadata": {"name": "u"}}
    good = body(status={"topicId": ID}, spec={"partitions": 1, "replicas": 1, "config": {"x": 1}})
    done = run("--strimzi", "-", stdin=text(good, other, body("bad", spec={})))
    assert done.exit_code == 1
    assert "KafkaConnect u: left out, see docs/how-to/migrate.md" in stderr_of(done)
    assert "not imported: standard input, KafkaTopic bad: spec.partitions is missing" in stderr_of(
        done
    )
    assert "1 Topic, 1 with the id of the topic to adopt; 1 not imported" in stderr_of(done)
    assert "KafkaTopic orders: x is not a known topic configuration key" in stderr_of(done)
    # The remark is also a comment above the Topic.
    assert "# - x is not a known topic configuration key" in done.stdout
    (made,) = yaml.safe_load_all(done.stdout)
    assert made["metadata"]["annotations"] == {ADOPT_TOPIC_ID: ID}


def test_a_topic_is_imported_once() -> None:
    one, other = (
        body("one"),
        body("other", spec={"partitions": 1, "replicas": 1, "topicName": "one"}),
    )
    done = run("--strimzi", "-", stdin=text(one, other))
    assert done.exit_code == 1
    assert "KafkaTopic other: standard input, KafkaTopic one also is topic one" in stderr_of(done)
    assert len(list(yaml.safe_load_all(done.stdout))) == 1


def test_topics_of_several_clusters_are_not_mixed() -> None:
    both = text(body("a", "one"), body("b", "two"))
    done = run("--strimzi", "-", stdin=both)
    assert done.exit_code == 1
    assert "several clusters, one, two: choose one with --strimzi-cluster" in stderr_of(done)
    done = run("--strimzi", "-", "--strimzi-cluster", "two", stdin=both)
    assert [
        safe_load_item["metadata"]["name"] for safe_load_item in yaml.safe_load_all(done.stdout)
    ] == ["b"]
    done = run("--strimzi", "-", "--strimzi-cluster", "three", stdin=both)
    assert "no object is of Strimzi cluster three; the files have one, two" in stderr_of(done)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a: [", "standard input is not YAML: "),
        ("just words", "standard input contains a document that is not an object: 'just words'"),
        ("", "there is no KafkaTopic, KafkaUser or Kafka in - (0 objects)"),
        ("kind: ConfigMap", "there is no KafkaTopic, KafkaUser or Kafka in - (1 object)"),
        ("- 1", "contains a document that is not an object"),
        ("kind: List\nitems: [1]", "contains a document that is not an object"),
        ("a: 2001-99-99", "standard input is not YAML"),
        (
            "kind: KafkaTopic\napiVersion: kafka.strimzi.io/v1\nmetadata: 1\n",
            "metadata is not a map",
        ),
    ],
)
def test_bad_input_is_named(given: str, why: str) -> None:
    done = run("--strimzi", "-", stdin=given)
    assert done.exit_code == 1
    assert why in stderr_of(done)
    assert done.stdout == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in stderr_of(run("--strimzi", str(tmp_path / "x.yaml")))
    (tmp_path / "x").mkdir()
    assert "contains no file that ends with .yaml, .yml, .json" in stderr_of(
        run("--strimzi", str(tmp_path))
    )


def test_the_result_is_written_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "out.yaml"
    arguments = ("--cluster", "prod", "--namespace", "n", "--deletion-policy", "Delete")
    done = run("--strimzi", "-", "--output", str(target), *arguments, stdin=text(body()))
    assert (done.exit_code, done.stdout) == (0, "")
    made = yaml.safe_load(target.read_text("utf-8"))
    assert made["metadata"]["namespace"] == "n"
    assert made["spec"]["clusterRef"] == {"name": "prod"}
    assert made["spec"]["deletionPolicy"] == "Delete"
    done = run("--strimzi", "-", "--output", str(tmp_path), stdin=text(body()))
    assert "cannot be written" in stderr_of(done)
