"""The CRD's remote storage has the library's kinds and fields.

The API server would silently drop an unknown kind or field.
"""

import json

import pytest

from tests.helm import CHART
from tidemark.tier.stores.config import KINDS, RemoteStorage
from tidemark.tier.stores.s3_config import S3Config
from tidemark_operator.resources import cluster
from tidemark_operator.resources.crdgen import structural_schema


def _kinds(*path: str) -> dict[str, set[str]]:
    """Return the kinds below a path of the CRD, with the names of their fields."""
    node = structural_schema(cluster.CLUSTER)
    for name in path:
        node = node["properties"][name]
    return {kind: set(schema["properties"]) for kind, schema in node["properties"].items()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_manifest_has_the_fields_of_each_kind(kind: type[RemoteStorage]) -> None:
    secret = {"credentialsSecretRef"} if kind.credential_names else set()
    secret |= {"caSecretRef"} if kind is S3Config else set()
    secret |= {"encryptionKeysSecretRef"}
    names = {*kind.location_names, *kind.setting_names, *kind.instruction_names, *secret}
    assert _kinds("spec", "remoteStorage")[kind.kind] == names


def test_the_chart_admits_the_fields_of_a_manifest() -> None:
    """Its schema refuses unknown fields. It has no directory, which pods would have to mount."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    spec = schema["properties"]["cluster"]["properties"]["spec"]
    kinds = spec["properties"]["remoteStorage"]["properties"]
    admitted = {kind: set(section["properties"]) for kind, section in kinds.items()}
    manifest = _kinds("spec", "remoteStorage")
    assert admitted == {kind: names for kind, names in manifest.items() if kind != "filesystem"}
    # Without a Secret, pods use their own identity.
    assert not any("credentialsSecretRef" in section["required"] for section in kinds.values())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_status_records_the_location_of_each_kind(kind: type[RemoteStorage]) -> None:
    assert _kinds("status", "acceptedStorage")[kind.kind] == set(kind.location_names)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_rule_admits_one_kind_only(kind: type[RemoteStorage]) -> None:
    (rule,) = cluster.RemoteStorage.rules
    assert f"has(self.{kind.kind})" in rule.rule


def test_crd_has_only_known_kinds() -> None:
    assert _kinds("spec", "remoteStorage").keys() == KINDS.keys()
    assert _kinds("status", "acceptedStorage").keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_location_of_each_kind_is_immutable_while_in_use(
    kind: type[RemoteStorage],
) -> None:
    (rule,) = (r.rule for r in cluster.Cluster.rules if "cannot change" in r.message)
    assert f"has(oldSelf.spec.remoteStorage.{kind.kind})" in rule
