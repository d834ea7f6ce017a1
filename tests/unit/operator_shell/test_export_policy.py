"""Settings that an Export may use under the policy of its Cluster."""

from typing import Any

import pytest

from tidemark_operator.objects.export_policy import (
    CATALOG_PROPERTIES,
    SECRET_CATALOG_PROPERTIES,
    SECRET_SPARK_CONF,
    SPARK_CONF,
    is_below,
    refusal,
)
from tidemark_operator.resources.export import ExportSpec
from tidemark_operator.resources.export_policy import ExportPolicy, is_code

IMAGE = "registry.example:5000/pipeline:1"


def spec(**parts: Any) -> ExportSpec:
    table = {"name": "db.t", "warehouse": "s3a://lake/x", **parts.pop("table", {})}
    return ExportSpec.model_validate(
        {"topicRef": {"name": "t"}, "continuous": {}, "table": table, **parts}
    )


def said(policy: dict[str, Any] | None = None, *, in_pods: bool = True, **parts: Any) -> str:
    made = None if policy is None else ExportPolicy.model_validate(policy)
    return refusal(spec(**parts), made, in_pods=in_pods, image=IMAGE)


def test_what_every_export_needs_is_allowed_without_a_policy() -> None:
    assert said() == ""
    assert said(job={"image": IMAGE, "cores": 4, "conf": {"spark.driver.memory": "2g"}}) == ""
    assert said(table={"warehouse": "/lake", "catalog": {"type": "hadoop"}}) == ""
    assert said(job={"jars": ["/opt/jars/a.jar", "local:///opt/b.jar"]}) == ""
    assert said(source={"bootstrap": "elsewhere:9092"}) == ""  # no User proves anything there


def test_a_refusal_names_the_value_and_the_field_that_would_allow_it() -> None:
    text = said(job={"image": "other:1", "serviceAccountName": "sa"})
    assert text == (
        "the Cluster does not allow image other:1 (spec.exports.images); service account sa "
        "(spec.exports.serviceAccounts). Remove it, or have the Cluster's owner allow it"
    )
    many = said(job={"podLabels": {f"l{number}": "" for number in range(9)}})
    assert "and 5 more" in many


@pytest.mark.parametrize(
    ("allowed", "image", "is_allowed"),
    [
        ("r/a", "r/a", True),
        ("r/a", "r/a:2", True),
        ("r/a", "r/a@sha256:0", True),
        ("r/a", "r/a:2@sha256:0", True),
        ("r/a:1", "r/a:2", False),
        ("r/a", "r/a/b", False),
        ("r/a", "r/ab", False),
        ("r", "r:5000/evil", False),
        ("r/a", "x/r/a", False),
    ],
)
def test_an_image_is_the_allowed_one_or_of_its_repository(
    allowed: str, image: str, is_allowed: bool
) -> None:
    assert (said({"images": [allowed]}, job={"image": image}) == "") is is_allowed


@pytest.mark.parametrize(
    ("place", "allowed", "is_allowed"),
    [
        ("https://c.example/a", "https://c.example/", True),
        ("https://c.example", "https://c.example/", True),
        ("https://C.example/a", "https://c.example/a", True),
        ("https://c.example/ab", "https://c.example/a", False),
        ("http://c.example/a", "https://c.example/a", False),
        ("https://c.example:444/a", "https://c.example/a", False),
        ("https://c.example.evil/a", "https://c.example", False),
        ("https://c.example@evil/a", "https://c.example", False),
        ("https://evil/https://c.example", "https://c.example", False),
        ("https://c.example/a/../b", "https://c.example/a", False),
        ("https://c.example/a/%2e%2e/b", "https://c.example/a", False),
        ("https://c.example/a?x=https://evil", "https://c.example/a", False),
        ("https://c.example\\@evil/", "https://c.example/", False),
        ("https:///c.example", "https://c.example", False),
        ("s3a://lake-evil/x", "s3a://lake", False),
        ("file:/srv/lake/x", "/srv/lake", True),
        ("file:///srv/lake/x", "/srv/lake", True),
        ("/srv//lake/x", "/srv/lake", True),
        ("/srv/lake/../x", "/srv/lake", False),
        ("srv/lake", "/", False),
        ("jdbc:x://h/d?a=b", "jdbc:x://h/d?a=b", True),
        ("jdbc:x://h/d?a=c", "jdbc:x://h/d?a=b", False),
        ("minio:9000", "minio:9000", True),
        ("https://[::1]:9/a", "https://[::1]:9", True),
    ],
)
def test_a_place_is_below_an_allowed_one(place: str, allowed: str, is_allowed: bool) -> None:
    assert is_below(place, (allowed,)) is is_allowed


def test_a_process_of_a_local_operator_reaches_no_path_of_its_machine() -> None:
    for warehouse in ("/home/me", "file:///home/me", "FILE:///home/me", "file:/x", "home", "s3:/x"):
        assert "warehouses" in said(in_pods=False, table={"warehouse": warehouse}), warehouse
    assert said(in_pods=False) == ""
    assert "jars" in said(in_pods=False, job={"jars": ["/home/me/a.jar"]})
    schema = {"schema": {"format": "avro", "file": "/home/me/a.avsc"}}
    assert "jars" in said(in_pods=False, table=schema)
    assert said({"jars": ["/home/me"]}, in_pods=False, table=schema) == ""
    assert said(table=schema) == ""
    mine = {"warehouses": ["/srv"], "jars": ["/srv/jars"]}
    parts = {"table": {"warehouse": "/srv/lake"}, "job": {"jars": ["/srv/jars/a.jar"]}}
    assert said(mine, in_pods=False, **parts) == ""
    assert "warehouses" in said(mine, in_pods=False)  # a list is all that there is


def test_a_jar_of_a_volume_or_of_a_folder_that_is_written_is_not_the_images() -> None:
    volume = [{"claimName": "lake", "mountPath": "/lake"}]
    policy = {"claims": ["lake"]}
    for jar in ("/lake/a.jar", "/lake//a.jar", "local:///lake/a.jar", "/tmp/a.jar", "a.jar"):
        assert "jars" in said(policy, job={"jars": [jar], "volumes": volume}), jar
    assert said(policy | {"jars": ["/lake/jars"]}, job={"jars": ["/lake/jars/a.jar"]}) == ""


def test_what_the_owner_lists_is_allowed_and_code_is_not() -> None:
    key = "spark.hadoop.fs.s3a.aws.credentials.provider"
    assert "sparkConf" in said(job={"conf": {key: "x"}})
    assert said({"sparkConf": ["spark.hadoop.fs.s3a.aws.*"]}, job={"conf": {key: "x"}}) == ""
    hidden = {"name": "spark.plugins", "secretKeyRef": {"name": "s", "key": "k"}}
    jobs: list[dict[str, Any]] = [{"conf": {"spark.plugins": "x"}}, {"confSecrets": [hidden]}]
    for job in jobs:
        assert "loads code" in said({"sparkConf": ["spark.*"]}, job=job)
    assert "control character" in said(job={"conf": {"spark.driver.memory": "1g\n-agent"}})
    impl = {"catalog": {"catalog-impl": "mine.Catalog"}}
    assert "catalogProperties" in said(table=impl)
    assert said({"catalogProperties": ["catalog-impl"]}, table=impl) == ""


def test_addresses_are_looked_up_wherever_they_stand() -> None:
    policy = {"endpoints": ["https://c.example", "kafka://b1:9093"]}
    good = {"catalog": {"type": "rest", "uri": "https://c.example/v1"}}
    assert "endpoints" in said(table=good)
    assert said(policy, table=good) == ""
    user = {"userRef": {"name": "u"}, "options": {"kafka.security.protocol": "SSL"}}
    assert said(policy, source={**user, "bootstrap": "b1:9093"}) == ""
    assert "kafka://b2:9093" in said(policy, source={**user, "bootstrap": "b1:9093,b2:9093"})
    assert said(source=user) == ""  # the Cluster's own brokers
    registry = {"format": "avro", "registry": {"url": "https://c.example,https://evil"}}
    assert "registry https://evil" in said(policy, table={"schema": registry})


@pytest.mark.parametrize(
    "parts",
    [
        {"job": {"conf": {"spark.log.level": "${env:TIDEMARK_SECRET_1}"}}},
        {"job": {"conf": {"spark.hadoop.fs.s3a.access.key": "${env.TIDEMARK_SECRET_1}"}}},
        {"job": {"conf": {"spark.hadoop.fs.s3a.access.key": "x${fs.s3a.secret.key}"}}},
        {"table": {"catalog": {"type": "rest", "scope": "env:TIDEMARK_SECRET_1"}}},
        {"table": {"catalog": {"type": "rest", "prefix": "env:TIDEMARK_SECRET_1"}}},
        {"table": {"warehouse": "env:TIDEMARK_SECRET_1"}},
        {"table": {"properties": {"comment": "${env:TIDEMARK_SECRET_1}"}}},
    ],
)
def test_no_value_refers_to_the_environment_of_the_job(parts: dict[str, Any]) -> None:
    everything = {"sparkConf": ["spark.*"], "catalogProperties": ["p*", "s*"]}
    for policy in (None, everything):
        assert "contains a variable" in said(policy, **parts)


def test_a_secret_is_the_value_only_of_what_is_secret() -> None:
    def hidden(name: str) -> dict[str, Any]:
        return {"name": name, "secretKeyRef": {"name": "s", "key": "k"}}

    for key in (*SECRET_SPARK_CONF, "spark.log.level", "spark.sql.session.timeZone"):
        is_refused = "from a Secret" in said(job={"confSecrets": [hidden(key)]})
        assert is_refused is (key not in SECRET_SPARK_CONF), key
    for key in (*SECRET_CATALOG_PROPERTIES, "type", "client.region", "prefix", "uri"):
        is_refused = "from a Secret" in said(table={"catalogSecrets": [hidden(key)]})
        assert is_refused is (key not in SECRET_CATALOG_PROPERTIES), key
    # An address that is allowed beside it does not allow that of the Secret, which replaces it.
    policy = {
        "endpoints": ["https://c.example"],
        "catalogProperties": ["u*"],
        "sparkConf": ["spark.hadoop.fs.s3a.*"],
    }
    catalog = {"type": "rest", "uri": "https://c.example"}
    assert said(policy, table={"catalog": catalog}) == ""
    both = {"catalog": catalog, "catalogSecrets": [hidden("uri")]}
    assert "uri from a Secret" in said(policy, table=both)
    endpoint = "spark.hadoop.fs.s3a.endpoint"
    job = {"conf": {endpoint: "https://c.example"}, "confSecrets": [hidden(endpoint)]}
    assert f"{endpoint} from a Secret" in said(policy, job=job)


@pytest.mark.parametrize(
    "parts",
    [
        # Spark's catalogs read keys without regard to case.
        {"table": {"catalog": {"s3.ENDPOINT": "https://evil.example"}}},
        {"table": {"catalog": {"s3.endpoint ": "https://evil.example"}}},
        {"table": {"catalog": {"s3.Client-Factory-Impl\u200b": "evil.Factory"}}},
        {"job": {"conf": {"spark.hadoop.fs.s3a.endpoint ": "https://evil.example"}}},
        {"job": {"conf": {"spark.hadoop.fs.s3a.bucket.lake.endpoint": "https://evil.example"}}},
        {"job": {"conf": {"spark.hadoop.fs.s3a.x\nspark.plugins=": "evil"}}},
    ],
)
def test_another_spelling_of_a_key_passes_no_pattern(parts: dict[str, Any]) -> None:
    policy = {"sparkConf": ["spark.hadoop.fs.s3a.*"], "catalogProperties": ["s3.*"]}
    assert said(policy, **parts)


def test_a_region_or_a_prefix_leads_to_no_other_host_or_path() -> None:
    for region in ("x.evil.example/#", "evil.example", "a b", "a@b"):
        assert "not a region" in said(table={"catalog": {"client.region": region}})
        assert "not a region" in said(job={"conf": {"spark.hadoop.fs.s3a.endpoint.region": region}})
    assert said(table={"catalog": {"client.region": "eu-central-1"}}) == ""
    for prefix in ("../../admin", "a/../../b", "%2e%2e/x", "a?b", "a#b"):
        assert "points outside" in said(table={"catalog": {"prefix": prefix}})
    assert said(table={"catalog": {"prefix": "warehouses/one"}}) == ""


def test_what_is_allowed_without_a_policy_loads_no_code() -> None:
    assert not [key for key in SPARK_CONF if is_code(key)]
    assert {*SECRET_SPARK_CONF} < {*SPARK_CONF}
    assert {*SECRET_CATALOG_PROPERTIES} < {*CATALOG_PROPERTIES}
    assert len(set(CATALOG_PROPERTIES)) == len(CATALOG_PROPERTIES)
