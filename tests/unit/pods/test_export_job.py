"""The Job of an Export's run: its inputs, their form, and the permissions of its pod."""

import dataclasses
import json
import uuid
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE
from tidemark.export_job import ORDER_VARIABLE, MaintenancePlan, OptionPlace, Order
from tidemark.tier.stores.config import from_options
from tidemark.tier.stores.s3_config import S3Config
from tidemark.wire.control import Endpoint
from tidemark_operator.controller.state.export_values import DesiredJob, Problem
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.objects.exports import (
    JobDefaults,
    Surroundings,
    bootstrap,
    desired_job,
    export_info,
)
from tidemark_operator.pods.export_job import ExportRunIdentity, export_job, topics_config_map
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.export import OPTIONS, REGISTRY_OPTIONS
from tidemark_pipeline.export.table import RunRef, SortField
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.read import options as source_options

RUN = ExportRunIdentity(name="flights", namespace=NAMESPACE, uid="u-1", cluster="main", number=7)
S3 = {
    "s3": {
        "endpoint": "http://store:9000",
        "region": "eu",
        "buckets": ["one", "two"],
        "prefix": "p",
        "credentialsSecretRef": {"name": "tier"},
    }
}
#: As much of a service account's JSON as is checked before its use.
GCS_KEY = '{"client_email": "a", "private_key": "b", "private_key_id": "c"}'
VALUE = {"secretKeyRef": {"name": "keys", "key": "token"}}


def body(**spec: Any) -> dict[str, Any]:
    table = {"name": "db.t", "warehouse": "s3://lake", **spec.pop("table", {})}
    when = {} if "schedule" in spec else {"continuous": {"interval": "1m30s"}}
    return {
        "metadata": {"name": "flights", "namespace": NAMESPACE, "generation": 1},
        "spec": {"topicRef": {"name": "t"}, "table": table} | when | spec,
    }


def surroundings(**fields: Any) -> Surroundings:
    base: dict[str, Any] = {
        "topic": TopicInfo(
            key="ns/t",
            uid=uuid.UUID(int=1),
            name="Flights_2013",
            generation=1,
            partitions=1,
            replication_factor=1,
        ),
        "cluster": Cluster.parse({"spec": {"remoteStorage": S3}}),
        "brokers": (
            (Endpoint(name="PLAINTEXT", host="b1", port=9092),),
            (Endpoint(name="SECURE", host="::1", port=9093),),
        ),
        "user": lambda _: UserInfo(
            key="ns/alice", uid="u", username="alice", generation=1, mechanism=2
        ),
        "labelled": lambda labels: ["lake", "a"] if labels == {"lake": "yes"} else [],
    }
    return Surroundings(**base | fields)


def job_of(made: dict[str, Any], **around: Any) -> DesiredJob:
    found = desired_job(made, surroundings(**around), JobDefaults(image="pipeline:1"))
    assert isinstance(found, DesiredJob), found
    return found


def template(made: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = export_job(RUN, job_of(made))["spec"]["template"]
    return spec


def container(made: dict[str, Any]) -> dict[str, Any]:
    (found,) = template(made)["spec"]["containers"]
    return dict(found)


def variables(made: dict[str, Any]) -> dict[str, Any]:
    return {
        item["name"]: item.get("valueFrom", {}).get("secretKeyRef") or item["value"]
        for item in container(made)["env"]
    }


def order(made: dict[str, Any]) -> Order:
    return Order.of_json(variables(made)[ORDER_VARIABLE])


@pytest.mark.parametrize(
    ("storage", "options", "secrets"),
    [
        (
            {"gcs": {"buckets": ["one", "two"], "credentialsSecretRef": {"name": "tier"}}},
            {"storage": "gcs", "buckets": "one,two"},
            {"serviceAccountKey"},
        ),
        (
            {"azure": {"account": "acc", "containers": ["con"], "prefix": "p"}},
            {"storage": "azure", "account": "acc", "containers": "con", "prefix": "p"},
            set(),
        ),
        # Buckets without an endpoint are on AWS.
        (
            {"s3": {name: value for name, value in S3["s3"].items() if name != "endpoint"}},
            {"region": "eu", "buckets": "one,two", "prefix": "p"},
            {"accessKeyId", "secretAccessKey", "sessionToken"},
        ),
    ],
)
def test_the_job_receives_the_location_of_every_kind(
    storage: dict[str, Any], options: dict[str, str], secrets: set[str]
) -> None:
    cluster = Cluster.parse({"spec": {"remoteStorage": storage}})
    job = job_of(body(), cluster=cluster)
    rest = {"topic": "Flights_2013", "tier": "auto", "bootstrap": "b1:9092"}
    assert job.order.source == {**rest, **options}
    assert {item.name for item in job.order.hidden} == secrets
    # The job's own parser accepts them, with or without values of the Secret.
    values = {"serviceAccountKey": GCS_KEY} | dict.fromkeys(secrets - {"serviceAccountKey"}, "x")
    read = source_options.parse({**job.order.source, **{name: values[name] for name in secrets}})
    assert read.storage is not None
    assert read.storage.kind == next(iter(storage))


def test_the_job_receives_the_topics_location_and_its_credentials() -> None:
    decoded = order(body())
    assert decoded.source == {
        "topic": "Flights_2013",
        "tier": "auto",
        "endpoint": "http://store:9000",
        "region": "eu",
        "buckets": "one,two",
        "prefix": "p",
        "bootstrap": "b1:9092",
    }
    assert decoded.table == {"table": "db.t", "warehouse": "s3://lake"}
    assert (decoded.every_s, decoded.cores) == (90, 2)
    assert TableOptions.of(order(body(deleteAfterCommit=True)).table).deletes
    assert not TableOptions.of(order(body(deleteAfterCommit=False)).table).deletes
    # The order names variables, whose values come from the Secret.
    by_name = {(item.place, item.name): item.variable for item in decoded.hidden}
    assert variables(body())[by_name[OptionPlace.SOURCE, "secretAccessKey"]] == {
        "name": "tier",
        "key": "secretAccessKey",
    }


def test_tier_without_a_secret_is_read_with_the_identity_of_the_pod() -> None:
    s3 = {"region": "eu", "buckets": ["one"], "roleArn": "arn:aws:iam::1:role/r"}
    cluster = Cluster.parse({"spec": {"remoteStorage": {"s3": s3}}})
    found = desired_job(
        body(), surroundings(cluster=cluster), JobDefaults(image="i", service_account="exports")
    )
    assert isinstance(found, DesiredJob)
    assert found.order.source["roleArn"] == "arn:aws:iam::1:role/r"
    assert not [item for item in found.order.hidden if item.place is OptionPlace.SOURCE]
    spec = export_job(RUN, found)["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("exports", False)
    # The job recognizes the tier by these options.
    assert isinstance(from_options(found.order.source, {}), S3Config)


def test_session_token_of_the_tiers_secret_is_optional() -> None:
    decoded = order(body())
    (token,) = (item for item in decoded.hidden if item.name == "sessionToken")
    assert variables(body())[token.variable] == {
        "name": "tier",
        "key": "sessionToken",
        "optional": True,
    }
    environment = {item.variable: "x" for item in decoded.hidden}
    assert decoded.revealed(environment).source["sessionToken"] == "x"
    del environment[token.variable]
    assert "sessionToken" not in decoded.revealed(environment).source


def test_order_has_every_field_of_table_and_job() -> None:
    made = body(
        schedule="@daily",
        table={
            "catalog": {"type": "rest"},
            "catalogSecrets": [{"name": "token", **VALUE}],
            "schema": {"format": "json", "fields": "id BIGINT"},
            "deadLetters": "db.dlq",
            "mode": "upsert",
            "partition": "day",
            "keyBuckets": 8,
            "properties": {"a": "b"},
        },
        job={
            "cores": 4,
            "jars": ["/a.jar"],
            "conf": {"spark.driver.memory": "2g"},
            "confSecrets": [{"name": "spark.hadoop.fs.s3a.secret.key", **VALUE}],
        },
    )
    decoded = order(made)
    assert decoded.table == {
        "table": "db.t",
        "warehouse": "s3://lake",
        "catalog": {"type": "rest"},
        "schema": "id BIGINT",
        "dead_letters": "db.dlq",
        "mode": "upsert",
        "partition": "day",
        "key_buckets": 8,
        "properties": {"a": "b"},
    }
    assert (decoded.every_s, decoded.cores, decoded.jars) == (None, 4, ("/a.jar",))
    places = {(item.place, item.name) for item in decoded.hidden}
    assert {
        (OptionPlace.CATALOG, "token"),
        (OptionPlace.CONF, "spark.hadoop.fs.s3a.secret.key"),
    } <= places
    # The value of a Secret is in no field of the order.
    assert "secret" not in json.dumps(decoded.conf)


def test_a_table_of_delta_lake_is_in_its_warehouse() -> None:
    made = body(
        table={"format": "delta", "warehouse": "/lake", "mode": "upsert", "partition": "hour"}
    )
    options = TableOptions.of(order(made).table)
    assert options.name_of("db.t") == "delta.`/lake/db/t`"
    # The session has the extension of Delta, and no catalog of Iceberg.
    settings = options.settings(["/delta.jar"])
    assert settings["spark.sql.extensions"].startswith("io.delta.")
    assert not any(name.startswith("spark.sql.catalog.lake") for name in settings)


def test_tables_in_one_folder_are_one_table() -> None:
    tables = [
        {"format": "delta"},
        {"format": "iceberg", "warehouse": "s3://lake/"},
        {"catalog": {"type": "hadoop"}},
    ]
    assert len({export_info(body(table=table))[0].tables for table in tables}) == 1
    rest = {"catalog": {"type": "rest", "uri": "https://catalog.example"}}
    assert export_info(body(table=rest))[0].tables != export_info(body())[0].tables


def test_partition_transforms_and_the_sort_order_reach_the_table() -> None:
    made = body(
        table={
            "partitionBy": [{"column": "carrier"}, {"column": "id", "transform": "bucket[16]"}],
            "sortBy": [{"column": "kafka.timestamp", "direction": "desc"}],
        }
    )
    options = TableOptions.of(order(made).table)
    assert [field.parsed() for field in options.partition_by] == [
        ("identity", ()),
        ("bucket", (16,)),
    ]
    assert options.sort_by == (SortField("kafka.timestamp", direction="desc"),)


def test_tag_of_each_run_reaches_the_table() -> None:
    made = body(schedule="@daily", table={"runRef": {"prefix": "nightly", "maxAge": "1h"}})
    ref = TableOptions.of(order(made).table).run_ref
    assert ref == RunRef(prefix="nightly", max_age_ms=3_600_000)
    assert ref.name(1_767_225_600_999) == "nightly-20260101T000000Z"


def test_maintenance_is_part_of_the_order() -> None:
    # Without the field the job does none, and without values it does all at the defaults.
    assert order(body()).maintenance is None
    hour_ms = 3_600_000
    plan = order(body(maintenance={})).maintenance
    assert plan == MaintenancePlan(
        schedule="@hourly", keep_ms=168 * hour_ms, orphans_ms=72 * hour_ms, pause_ms=300_000
    )
    # Each value is used, and each step can be left out.
    made = body(
        maintenance={
            "schedule": "0 3 * * *",
            "timeZone": "Europe/Berlin",
            "compaction": {"enabled": False},
            "expireSnapshots": {"olderThan": "1h", "keepLast": 5},
            "removeOrphans": {"enabled": False},
            "maxPause": "30s",
        }
    )
    plan = order(made).maintenance
    assert plan == MaintenancePlan(
        schedule="0 3 * * *",
        zone="Europe/Berlin",
        compact=False,
        keep_ms=hour_ms,
        keep_last=5,
        pause_ms=30_000,
    )


def test_a_job_continues_after_the_last_maintenance() -> None:
    made = body(maintenance={})
    fresh = job_of(made)
    made["status"] = {"maintenance": {"startTime": "2026-01-01T00:00:00Z"}}
    later = job_of(made)
    assert later.order.maintenance is not None
    assert later.order.maintenance.since_ms == 1_767_225_600_000
    # A job that runs is not restarted after each maintenance.
    assert later.digest == fresh.digest
    assert job_of(body(maintenance={"schedule": "@daily"})).digest != fresh.digest


def test_an_invalid_schedule_of_maintenance_is_named() -> None:
    _, problem = export_info(body(maintenance={"schedule": "0 0 30 2 *"}))
    assert problem is not None
    assert problem.message.endswith("Correct spec.maintenance.schedule")


def test_a_schema_is_given_by_its_text_its_file_or_its_registry() -> None:
    avro = {"format": "avro", "definition": '{"type": "record"}', "evolution": "grow"}
    decoded = order(body(table={"schema": avro}))
    assert (decoded.definition, decoded.definition_name) == ('{"type": "record"}', "schema.avsc")
    assert decoded.table["evolution"] == "grow"
    # The second source of a schema is a file in the image or a volume.
    proto = {"format": "protobuf", "file": "/lake/order.proto", "message": "shop.Order"}
    decoded = order(body(table={"schema": proto}))
    assert decoded.table["schema_file"] == "/lake/order.proto"
    assert decoded.table["message"] == "shop.Order"
    # The third one is a registry, whose certificates are mounted.
    registry = {
        "url": "https://registry:8081",
        "options": {"subject": "orders-value", "user": "reader"},
        "secrets": [{"name": "password", **VALUE}],
        "trustedSecretRef": {"name": "trust", "key": "ca.crt"},
        "certificateSecretRef": {"name": "shown"},
    }
    made = body(table={"schema": {"format": "avro", "registry": registry}})
    decoded = order(made)
    assert decoded.table["registry"] == "https://registry:8081"
    folder = "/var/run/tidemark"
    assert decoded.table["registry_options"] == {
        "subject": "orders-value",
        "user": "reader",
        "ca": f"{folder}/trust/ca.crt",
        "certificate": f"{folder}/shown/tls.crt",
        "key": f"{folder}/shown/tls.key",
    }
    assert (OptionPlace.REGISTRY, "password") in {
        (item.place, item.name) for item in decoded.hidden
    }


def test_options_of_an_order_are_known_to_the_job() -> None:
    """The pipeline defines the names, and the operator does not import it."""
    registry = {"url": "http://r:1", "options": dict.fromkeys(REGISTRY_OPTIONS, "1")}
    schemas: list[dict[str, Any]] = [
        {"format": "json", "fields": "id BIGINT", "evolution": "ignore"},
        {"format": "protobuf", "file": "/x.proto", "message": "m"},
        {"format": "avro", "registry": registry},
    ]
    for schema in schemas:
        table = {"mode": "append", "partition": "hour", "keyBuckets": 2, "properties": {"a": "b"}}
        TableOptions.of(order(body(table={**table, "schema": schema})).table)
    assert set(OPTIONS) <= {option.name for option in source_options.OPTIONS}


def test_a_user_proves_itself_by_its_secret() -> None:
    options = {"kafka.security.protocol": "SASL_SSL"}
    source = {
        "listener": "SECURE",
        "userRef": {"name": "alice"},
        "trustedSecretRef": {"name": "trust", "key": "ca.crt"},
        "options": options,
    }
    made = body(source=source)
    decoded = order(made)
    assert decoded.source["bootstrap"] == "[::1]:9093"
    assert decoded.source["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert decoded.source["kafka.ssl.ca.location"] == "/var/run/tidemark/trust/ca.crt"
    mounts = {item["mountPath"] for item in container(made)["volumeMounts"]}
    assert mounts == {"/tmp", "/var/run/tidemark/trust"}
    assert {"name": "alice", "key": "password"} in variables(made).values()


def test_the_pod_is_restricted_and_knows_nothing_of_kubernetes() -> None:
    made = body(job={"podLabels": {"app.kubernetes.io/name": "mine", "team": "a"}})
    spec = template(made)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["shareProcessNamespace"] is True
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(made)["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    labels = template(made)["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "tidemark-export"  # NetworkPolicies select it.
    assert (labels["tidemark.dev/export"], labels["tidemark.dev/run"]) == ("flights", "7")
    assert labels["team"] == "a"


def test_a_job_is_one_attempt_and_is_deleted_with_its_export() -> None:
    made = export_job(RUN, job_of(body()))
    assert made["metadata"]["name"] == "flights-7"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Export", "flights", "u-1")
    assert made["spec"]["backoffLimit"] == 0


def test_volumes_and_places_are_those_of_the_manifest() -> None:
    made = body(
        job={
            "image": "mine:2",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{"name": "pull"}],
            "serviceAccountName": "lake-writer",
            "resources": {"requests": {"cpu": 1}, "limits": {"memory": "4Gi"}},
            "volumes": [{"claimName": "lake", "mountPath": "/lake", "readOnly": True}],
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "spark", "operator": "Exists"}],
            "priorityClassName": "low",
        }
    )
    spec, main_container = template(made)["spec"], container(made)
    assert main_container["image"] == "mine:2"
    assert main_container["imagePullPolicy"] == "Always"
    assert main_container["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "4Gi"}}
    assert spec["serviceAccountName"] == "lake-writer"
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"] == [{"key": "spark", "operator": "Exists"}]
    assert spec["priorityClassName"] == "low"
    claims = [item for item in spec["volumes"] if "persistentVolumeClaim" in item]
    assert claims == [{"name": "claim-0", "persistentVolumeClaim": {"claimName": "lake"}}]
    assert {"name": "claim-0", "mountPath": "/lake", "readOnly": True} in main_container[
        "volumeMounts"
    ]


def test_a_kubelet_expands_nothing_in_the_jobs_variables() -> None:
    """A kubelet expands $(NAME) and replaces $$ by $."""
    fields = "`$(TIDEMARK_SECRET_0)` STRING, `a$$b` INT"
    made = body(table={"schema": {"format": "json", "fields": fields}})
    assert "$" not in str(variables(made)[ORDER_VARIABLE])
    assert order(made).table["schema"] == fields


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, False),
        ({"suspend": True}, False),
        # The interval is the default of the test's manifest, written differently.
        ({"continuous": {"interval": "90s"}}, False),
        ({"continuous": {"interval": "91s"}}, True),
        ({"source": {"options": {"failOnDataLoss": "false"}}}, True),
        ({"job": {"image": "mine:2"}}, True),
        ({"job": {"resources": {"limits": {"memory": "1Gi"}}}}, True),
        ({"table": {"schema": {"format": "json", "fields": "id BIGINT"}}}, True),
        ({"table": {"catalogSecrets": [{"name": "token", **VALUE}]}}, True),
    ],
    ids=str,
)
def test_a_job_with_other_inputs_is_another_job(change: dict[str, Any], differs: bool) -> None:
    assert (job_of(body()).digest != job_of(body(**change)).digest) is differs


def test_brokers_and_their_order_do_not_change_the_job() -> None:
    brokers = tuple(reversed(surroundings().brokers))
    assert job_of(body(), brokers=brokers).digest == job_of(body()).digest
    more = (*surroundings().brokers, (Endpoint(name="PLAINTEXT", host="b0", port=1),))
    assert job_of(body(), brokers=more).digest == job_of(body()).digest
    for source in ({"bootstrap": "c:1"}, {"listener": "SECURE"}):
        assert job_of(body(source=source)).digest != job_of(body()).digest


def test_a_few_of_many_brokers_are_named() -> None:
    brokers = [(Endpoint(name="A", host=f"b{number}", port=1),) for number in range(100)]
    # Eight brokers are enough to find all others.
    assert len(bootstrap(brokers, "A").split(",")) == 8
    assert bootstrap(brokers, "B") == ""


def test_missing_source_is_a_problem_that_waits() -> None:
    found = desired_job(body(), surroundings(brokers=()), JobDefaults(image="i"))
    assert isinstance(found, Problem)
    assert dataclasses.replace(found, message="") == Problem(
        reason="SourceUnusable", message="", waits=True
    )


@pytest.mark.parametrize(
    ("topics", "selected"),
    [
        ({"names": ["a", "b.c"]}, {"subscribe": "a,b.c"}),
        ({"pattern": "orders-.*"}, {"subscribePattern": "orders-.*"}),
        ({"selector": {"matchLabels": {"lake": "yes"}}}, {"subscribe": "a,lake"}),
    ],
)
def test_job_of_many_topics_selects_them_itself(
    topics: dict[str, Any], selected: dict[str, str]
) -> None:
    many = body(topics=topics, table={"name": "lake.{topic}"})
    del many["spec"]["topicRef"]
    found = desired_job(many, surroundings(topic=None), JobDefaults())
    assert isinstance(found, DesiredJob)
    source = found.order.source
    assert {n: v for n, v in source.items() if n in ("topic", *selected)} == selected
    assert found.order.table["table"] == "lake.{topic}"
    assert TableOptions.of(found.order.table).table == "lake.{topic}"


def job_with_selector(names: list[str], **spec: Any) -> DesiredJob:
    many = body(
        topics={"selector": {"matchLabels": {"a": "b"}}}, table={"name": "lake.{topic}"}, **spec
    )
    del many["spec"]["topicRef"]
    return job_of(many, topic=None, labelled=lambda _: names)


def test_job_of_a_selector_reads_its_topics_again_from_a_file() -> None:
    one, two = job_with_selector(["t1"]), job_with_selector(["t2", "t1"])
    # The same job serves both selections.
    assert one.digest == two.digest
    assert (one.topics, two.topics) == (("t1",), ("t1", "t2"))
    made = export_job(RUN, two)["spec"]["template"]["spec"]
    config_map = topics_config_map(RUN, two, export_job(RUN, two) | {"metadata": {"uid": "j-1"}})
    name = config_map["metadata"]["name"]
    assert {"name": "topics", "configMap": {"name": name, "optional": True}} in made["volumes"]
    (mount,) = (m for m in made["containers"][0]["volumeMounts"] if m["name"] == "topics")
    assert mount["readOnly"]
    (text,) = (e["value"] for e in made["containers"][0]["env"] if e["name"] == ORDER_VARIABLE)
    assert Order.of_json(text).topics_file == f"{mount['mountPath']}/topics"
    assert config_map["data"] == {"topics": "t1\nt2"}
    # The ConfigMap is deleted with the job.
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", RUN.job, "j-1")


@pytest.mark.parametrize(
    "found",
    [job_with_selector(["t1"], schedule="@daily"), job_of(body())],
    ids=["schedule", "topic"],
)
def test_other_jobs_have_no_file_of_topics(found: DesiredJob) -> None:
    made = json.dumps(export_job(RUN, found))
    assert "topics_file" not in made
    assert '"topics"' not in made


@pytest.mark.parametrize(
    ("labelled", "message", "waits"),
    [
        ([], "no Topic has the labels", True),
        (["t" * 249] * 300, "the names of 300 topics have 75000 bytes, 65536 are allowed", False),
    ],
)
def test_selection_of_no_topics_or_of_too_many_is_reported(
    labelled: list[str], message: str, waits: bool
) -> None:
    many = body(topics={"selector": {"matchLabels": {"a": "b"}}}, table={"name": "lake.{topic}"})
    del many["spec"]["topicRef"]
    around = surroundings(topic=None, labelled=lambda _: labelled)
    found = desired_job(many, around, JobDefaults())
    assert isinstance(found, Problem)
    assert message in found.message
    assert found.waits is waits


def test_invalid_pattern_of_topics_is_refused() -> None:
    many = body(topics={"pattern": "("}, table={"name": "lake.{topic}"})
    del many["spec"]["topicRef"]
    found = desired_job(many, surroundings(topic=None), JobDefaults())
    assert isinstance(found, Problem)
    assert "spec.topics.pattern is no regular expression" in found.message
    assert not found.waits
