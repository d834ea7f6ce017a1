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


def refusal_of(policy: dict[str, Any] | None = None, *, in_pods: bool = True, **parts: Any) -> str:
    made = None if policy is None else ExportPolicy.model_validate(policy)
    return refusal(spec(**parts), made, in_pods=in_pods, image=IMAGE)


def test_basic_settings_are_allowed_without_a_policy() -> None:
    assert refusal_of() == ""
    assert refusal_of(job={"image": IMAGE, "cores": 4, "conf": {"spark.driver.memory": "2g"}}) == ""
    assert refusal_of(table={"warehouse": "/lake", "catalog": {"type": "hadoop"}}) == ""
    assert refusal_of(job={"jars": ["/opt/jars/a.jar", "local:///opt/b.jar"]}) == ""
    assert (
        refusal_of(source={"bootstrap": "elsewhere:9092"}) == ""
    )  # the operator's users do not exist there


def test_a_refusal_names_the_value_and_the_field_that_would_allow_it() -> None:
    text = refusal_of(job={"image": "other:1", "serviceAccountName": "sa"})
    assert text == (
        "the Cluster does not allow image other:1 (spec.exports.images); service account sa "
        "(spec.exports.serviceAccounts). Remove it, or have the Cluster's owner allow it"
    )
    many = refusal_of(job={"podLabels": {f"l{number}": "" for number in range(9)}})
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
        # A registry's port must not be taken for a tag.
        ("r", "r:5000/evil", False),
        ("r/a", "x/r/a", False),
    ],
)
def test_an_image_is_the_allowed_one_or_of_its_repository(
    allowed: str, image: str, is_allowed: bool
) -> None:
    assert (refusal_of({"images": [allowed]}, job={"image": image}) == "") is is_allowed


@pytest.mark.parametrize(
    ("place", "allowed", "is_allowed"),
    [
        ("https://c.example/a", "https://c.example/", True),
        ("https://c.example", "https://c.example/", True),
        ("https://C.example/a", "https://c.example/a", True),
        ("https://c.example/ab", "https://c.example/a", False),
        ("http://c.example/a", "https://c.example/a", False),
        # Port, host suffix and user part: spellings that a prefix comparison would accept.
        ("https://c.example:444/a", "https://c.example/a", False),
        ("https://c.example.evil/a", "https://c.example", False),
        ("https://c.example@evil/a", "https://c.example", False),
        ("https://evil/https://c.example", "https://c.example", False),
        # Dot segments, plain and encoded, leave the allowed path.
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


def test_local_job_may_not_use_paths_of_the_operators_machine() -> None:
    # Schemes without regard to case, relative paths, and a scheme without a host.
    for warehouse in ("/home/me", "file:///home/me", "FILE:///home/me", "file:/x", "home", "s3:/x"):
        assert "warehouses" in refusal_of(in_pods=False, table={"warehouse": warehouse}), warehouse
    assert refusal_of(in_pods=False) == ""
    assert "jars" in refusal_of(in_pods=False, job={"jars": ["/home/me/a.jar"]})
    schema = {"schema": {"format": "avro", "file": "/home/me/a.avsc"}}
    assert "jars" in refusal_of(in_pods=False, table=schema)
    assert refusal_of({"jars": ["/home/me"]}, in_pods=False, table=schema) == ""
    assert refusal_of(table=schema) == ""
    policy = {"warehouses": ["/srv"], "jars": ["/srv/jars"]}
    parts = {"table": {"warehouse": "/srv/lake"}, "job": {"jars": ["/srv/jars/a.jar"]}}
    assert refusal_of(policy, in_pods=False, **parts) == ""
    assert "warehouses" in refusal_of(policy, in_pods=False)  # a list replaces the defaults


def test_a_jar_of_a_volume_or_of_a_folder_that_is_written_is_not_the_images() -> None:
    volume = [{"claimName": "lake", "mountPath": "/lake"}]
    policy = {"claims": ["lake"]}
    # Other pods can write to a volume, and jobs to /tmp: such a jar is not the image's.
    for jar in ("/lake/a.jar", "/lake//a.jar", "local:///lake/a.jar", "/tmp/a.jar", "a.jar"):
        assert "jars" in refusal_of(policy, job={"jars": [jar], "volumes": volume}), jar
    assert refusal_of(policy | {"jars": ["/lake/jars"]}, job={"jars": ["/lake/jars/a.jar"]}) == ""


def test_listed_keys_are_allowed_unless_they_load_code() -> None:
    key = "spark.hadoop.fs.s3a.aws.credentials.provider"
    assert "sparkConf" in refusal_of(job={"conf": {key: "x"}})
    assert refusal_of({"sparkConf": ["spark.hadoop.fs.s3a.aws.*"]}, job={"conf": {key: "x"}}) == ""
    # A wildcard does not include keys that make Spark load classes.
    hidden = {"name": "spark.plugins", "secretKeyRef": {"name": "s", "key": "k"}}
    jobs: list[dict[str, Any]] = [{"conf": {"spark.plugins": "x"}}, {"confSecrets": [hidden]}]
    for job in jobs:
        assert "loads code" in refusal_of({"sparkConf": ["spark.*"]}, job=job)
    # A line break would start another option in Spark's properties file.
    assert "control character" in refusal_of(job={"conf": {"spark.driver.memory": "1g\n-agent"}})
    impl = {"catalog": {"catalog-impl": "custom.Catalog"}}
    assert "catalogProperties" in refusal_of(table=impl)
    assert refusal_of({"catalogProperties": ["catalog-impl"]}, table=impl) == ""


def test_addresses_are_checked_in_every_field() -> None:
    policy = {"endpoints": ["https://c.example", "kafka://b1:9093"]}
    good = {"catalog": {"type": "rest", "uri": "https://c.example/v1"}}
    assert "endpoints" in refusal_of(table=good)
    assert refusal_of(policy, table=good) == ""
    user = {"userRef": {"name": "u"}, "options": {"kafka.security.protocol": "SSL"}}
    assert refusal_of(policy, source={**user, "bootstrap": "b1:9093"}) == ""
    # Every server of a list is checked, not only the first.
    assert "kafka://b2:9093" in refusal_of(policy, source={**user, "bootstrap": "b1:9093,b2:9093"})
    assert refusal_of(source=user) == ""  # the Cluster's own brokers
    registry = {"format": "avro", "registry": {"url": "https://c.example,https://evil"}}
    assert "registry https://evil" in refusal_of(policy, table={"schema": registry})


@pytest.mark.parametrize(
    "parts",
    [
        {"job": {"conf": {"spark.log.level": "${env:TIDEMARK_SECRET_1}"}}},
        # Spark and Hadoop substitute variables, which would copy a Secret into a visible value.
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
        assert "contains a variable" in refusal_of(policy, **parts)


def test_only_secret_settings_may_come_from_a_secret() -> None:
    def hidden(name: str) -> dict[str, Any]:
        return {"name": name, "secretKeyRef": {"name": "s", "key": "k"}}

    # Only credentials come from Secrets: other settings stay visible in the Export.
    for key in (*SECRET_SPARK_CONF, "spark.log.level", "spark.sql.session.timeZone"):
        is_refused = "from a Secret" in refusal_of(job={"confSecrets": [hidden(key)]})
        assert is_refused is (key not in SECRET_SPARK_CONF), key
    for key in (*SECRET_CATALOG_PROPERTIES, "type", "client.region", "prefix", "uri"):
        is_refused = "from a Secret" in refusal_of(table={"catalogSecrets": [hidden(key)]})
        assert is_refused is (key not in SECRET_CATALOG_PROPERTIES), key
    # An address that is allowed beside it does not allow that of the Secret, which replaces it.
    policy = {
        "endpoints": ["https://c.example"],
        "catalogProperties": ["u*"],
        "sparkConf": ["spark.hadoop.fs.s3a.*"],
    }
    catalog = {"type": "rest", "uri": "https://c.example"}
    assert refusal_of(policy, table={"catalog": catalog}) == ""
    both = {"catalog": catalog, "catalogSecrets": [hidden("uri")]}
    assert "uri from a Secret" in refusal_of(policy, table=both)
    endpoint = "spark.hadoop.fs.s3a.endpoint"
    job = {"conf": {endpoint: "https://c.example"}, "confSecrets": [hidden(endpoint)]}
    assert f"{endpoint} from a Secret" in refusal_of(policy, job=job)


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
    assert refusal_of(policy, **parts)


def test_a_region_or_a_prefix_leads_to_no_other_host_or_path() -> None:
    # The region becomes part of a host name, and the prefix part of a path.
    for region in ("x.evil.example/#", "evil.example", "a b", "a@b"):
        assert "not a region" in refusal_of(table={"catalog": {"client.region": region}})
        assert "not a region" in refusal_of(
            job={"conf": {"spark.hadoop.fs.s3a.endpoint.region": region}}
        )
    assert refusal_of(table={"catalog": {"client.region": "eu-central-1"}}) == ""
    for prefix in ("../../admin", "a/../../b", "%2e%2e/x", "a?b", "a#b"):
        assert "points outside" in refusal_of(table={"catalog": {"prefix": prefix}})
    assert refusal_of(table={"catalog": {"prefix": "warehouses/one"}}) == ""


def test_default_keys_load_no_code() -> None:
    assert not [key for key in SPARK_CONF if is_code(key)]
    assert {*SECRET_SPARK_CONF} < {*SPARK_CONF}
    assert {*SECRET_CATALOG_PROPERTIES} < {*CATALOG_PROPERTIES}
    assert len(set(CATALOG_PROPERTIES)) == len(CATALOG_PROPERTIES)


#: Catalogs of docs/reference/export.md#catalogs-and-stores, with what their owner has to allow.
CATALOGS = {
    "REST": {"type": "rest", "uri": "https://c.example", "scope": "s"},
    "Polaris": {
        "type": "rest",
        "uri": "https://c.example/api/catalog",
        "scope": "PRINCIPAL_ROLE:ALL",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
    },
    "Unity": {"type": "rest", "uri": "https://c.example/api/2.1/unity-catalog/iceberg-rest"},
    "Glue": {
        "type": "glue",
        "client.region": "eu-central-1",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    },
    "Hive": {"type": "hive", "uri": "thrift://c.example:9083"},
    "Google Cloud": {
        "type": "rest",
        "uri": "https://c.example",
        "gcs.project-id": "p",
        "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    },
    "Azure": {
        "type": "rest",
        "uri": "https://c.example",
        "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
    },
}


@pytest.mark.parametrize("catalog", CATALOGS.values(), ids=CATALOGS.keys())
def test_documented_catalogs_need_only_their_address_allowed(catalog: dict[str, str]) -> None:
    endpoints = ["https://c.example", "thrift://c.example:9083"]
    secret = {"name": "credential", "secretKeyRef": {"name": "s", "key": "k"}}
    table = {"warehouse": "main", "catalog": catalog, "catalogSecrets": [secret]}
    assert refusal_of({"endpoints": endpoints}, table=table) == ""
    if "uri" in catalog:
        assert "spec.exports.endpoints" in refusal_of(table=table)
