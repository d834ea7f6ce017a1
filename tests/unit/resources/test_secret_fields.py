"""Every field that names a Secret is checked before the Secret is used."""

from collections.abc import Iterator
from typing import Any

import pytest

from tidemark_operator.resources.crdgen import structural_schema
from tidemark_operator.resources.export import Export
from tidemark_operator.resources.kinds import KINDS
from tidemark_operator.resources.references import secret_names
from tidemark_operator.resources.schema import ResourceKind

_POD = ("imagePullSecrets[]", "listeners[].tlsSecretRef")
#: By kind, all fields that name a Secret. One that is not listed here fails the test below: state
#: in docs/explanation/security.md what its Secret has to be offered to, and make the operator
#: require that offer.
FIELDS = {
    "Cluster": {
        *(f"remoteStorage.{kind}.credentialsSecretRef" for kind in ("s3", "gcs", "azure")),
        "remoteStorage.s3.caSecretRef",
        *(
            f"remoteStorage.{kind}.encryptionKeysSecretRef"
            for kind in ("s3", "gcs", "azure", "filesystem")
        ),
        "engine.kafka.tls.caSecretRef",
        "engine.kafka.tls.certificateSecretRef",
        "engine.kafka.sasl.credentialsSecretRef",
        "engine.kafka.exportCredentials.certificateSecretRef",
        "engine.kafka.exportCredentials.sasl.credentialsSecretRef",
        *(f"brokers.template.{field}" for field in _POD),
    },
    "Broker": {f"pod.{field}" for field in _POD},
    "User": {"authentication.password.valueFrom.secretKeyRef"},
    "Export": {
        "source.trustedSecretRef",
        "table.catalogSecrets[].secretKeyRef",
        "table.schema.registry.secrets[].secretKeyRef",
        "table.schema.registry.trustedSecretRef",
        "table.schema.registry.certificateSecretRef",
        "job.confSecrets[].secretKeyRef",
        "job.imagePullSecrets[]",
    },
}


def fields_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all fields below a schema, elements of lists as ``[]``."""
    for name, inner in (schema.get("properties") or {}).items():
        yield from fields_of(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from fields_of(schema["items"], f"{path}[]")
    yield path, schema


def names_secret(path: str, schema: dict[str, Any]) -> bool:
    """Return whether a field names a Secret, by its name or by its form: a name and a key."""
    properties, last = set(schema.get("properties") or {}), path.rpartition(".")[2].lower()
    if properties == {"name", "key"}:
        return True
    if last.endswith("secrets[]"):
        return "secretKeyRef" not in properties  # otherwise the inner field is the reference
    return "secret" in last and not last.endswith("secrets")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_field_that_names_a_secret_is_known(kind: ResourceKind) -> None:
    spec = structural_schema(kind)["properties"].get("spec", {})
    found = {path for path, schema in fields_of(spec) if names_secret(path, schema)}
    assert found == FIELDS.get(kind.kind, set())


def test_all_secrets_of_a_manifest_are_found() -> None:
    def ref(name: str) -> dict[str, Any]:
        return {"name": "password", "secretKeyRef": {"name": name, "key": "k"}}

    # Each Secret has a letter as its name, so that a missing one is visible.
    registry = {
        "url": "https://r:1",
        "secrets": [ref("a")],
        "trustedSecretRef": {"name": "b", "key": "k"},
        "certificateSecretRef": {"name": "c"},
    }
    spec = {
        "topicRef": {"name": "topic"},
        "continuous": {},
        "source": {"trustedSecretRef": {"name": "d", "key": "k"}, "userRef": {"name": "user"}},
        "table": {
            "name": "db.t",
            "catalogSecrets": [ref("e")],
            "schema": {"format": "avro", "registry": registry},
        },
        "job": {
            "imagePullSecrets": [{"name": "f"}],
            "confSecrets": [{**ref("g"), "name": "spark.x"}],
        },
    }
    export = Export.parse({"metadata": {"name": "x"}, "spec": spec})
    assert secret_names(export.spec) == set("abcdefg")
    assert secret_names(export.spec.source.user_ref if export.spec.source else None) == frozenset()
