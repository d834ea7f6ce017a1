"""Strimzi's objects, from Git or ``kubectl get -o yaml``, and its ``KafkaTopic`` in particular.

Both served versions have the same spec: ``topicName``, ``partitions``, ``replicas``, ``config``.
Strimzi resets keys that a manifest does not name to the broker's default, and deletes a topic with
its object. Tidemark leaves unnamed keys unchanged, and imported topics are kept on deletion
(``Orphan``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.topics import ImportedTopic, NotImported

GROUP = "kafka.strimzi.io"
VERSIONS = ("v1", "v1beta2")
CLUSTER_LABEL = "strimzi.io/cluster"
_MANAGED = "strimzi.io/managed"
_PAUSED = "strimzi.io/pause-reconciliation"
_FIELDS = frozenset({"topicName", "partitions", "replicas", "config"})
#: Unprefixed labels that Helm charts traditionally set; they name the old chart and release.
_HELM_LABELS = frozenset({"chart", "heritage", "release"})
#: Every KafkaTopic has keys with these prefixes, so omitting them is not reported.
_EXPECTED_PREFIXES = ("strimzi.io/", "kubectl.kubernetes.io/")
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values that a KafkaTopic inherits from its brokers if it does not set them; None if
    unknown.
    """

    partitions: int | None = None
    replication_factor: int | None = None


@dataclass(frozen=True, slots=True)
class MetadataRule:
    """Rule for the labels and annotations that an object receives from Strimzi's: the user's own
    (:func:`is_users_own`), with the exceptions that the caller names by key."""

    kept: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()

    def copies(self, key: str) -> bool:
        """Return whether the key is copied."""
        return key not in self.dropped and (key in self.kept or is_users_own(key))

    def copied(self, metadata: Mapping[str, str]) -> dict[str, str]:
        """Return the labels or annotations that are copied."""
        return {key: value for key, value in metadata.items() if self.copies(key)}

    def omitted(self, document: Document) -> list[str]:
        """Return what is not copied from an object and is worth reporting: ``label KEY``,
        ``annotation KEY``, ``metadata.ownerReferences``."""
        omitted = [
            f"{noun} {key}"
            for noun, name in (("label", "labels"), ("annotation", "annotations"))
            for key in text_map(document.body, name)
            if not self.copies(key) and not key.startswith(_EXPECTED_PREFIXES)
        ]
        meta = document.body.get("metadata")
        is_owned = isinstance(meta, Mapping) and bool(meta.get("ownerReferences"))
        return [*omitted, *(["metadata.ownerReferences"] if is_owned else [])]


def is_kind(document: Document, kind: str) -> bool:
    """Return whether it is an object of a kind of Strimzi's, of any version."""
    version = str(document.body.get("apiVersion", ""))
    return document.body.get("kind") == kind and version.partition("/")[0] == GROUP


def is_strimzis(document: Document) -> bool:
    """Return whether it is any Strimzi object."""
    return str(document.body.get("apiVersion", "")).partition("/")[0].endswith("strimzi.io")


def topic_name(document: Document) -> str:
    """Return the topic's name in Kafka, also where the rest of the KafkaTopic is invalid; "" if it
    has none."""
    spec = document.body.get("spec")
    name = spec.get("topicName") if isinstance(spec, Mapping) else None
    if name is None:
        return object_name(document)
    return name if isinstance(name, str) else ""


def object_name(document: Document) -> str:
    """Return the name of an object, also where the rest of it is invalid; "" if it has none."""
    meta = document.body.get("metadata")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    return name if isinstance(name, str) else ""


def is_users_own(key: str) -> bool:
    """Return whether a label or annotation key belongs to the user rather than to a tool.

    Tools recognize the objects that they manage by labels and annotations: Argo CD, Flux, Helm,
    kubectl's ApplySets, kapp and others. A copy of such a key makes the new Topic look like one of
    their objects, and the next prune deletes it with its data. Kubernetes reserves keys without a
    prefix for users and requires a prefix of automated components, so the rule is an allow list
    that also covers tools that are not known here. A dot in the name marks tools that ignore the
    convention (``olm.owner``, ``com.docker.compose.project``).
    """
    return "/" not in key and "." not in key and key not in _HELM_LABELS


def clusters(documents: Iterable[Document]) -> list[str]:
    """Return the Strimzi clusters that objects name, sorted; "" for objects without the label."""
    return sorted(
        {text_map(document.body, "labels").get(CLUSTER_LABEL, "") for document in documents}
    )


def supported_metadata(document: Document) -> tuple[Mapping[str, Any], str]:
    """Return the metadata and the name of an object.

    Raises :class:`NotImported` if the object has no name, or a version that is not read.
    """
    body = document.body
    version = str(body["apiVersion"]).partition("/")[2]
    if version not in VERSIONS:
        known = " and ".join(f"{GROUP}/{version}" for version in VERSIONS)
        raise NotImported(f"apiVersion {body['apiVersion']} is not supported; use {known}")
    meta = field_map(body, "metadata")
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise NotImported("metadata.name is missing")
    return meta, name


def is_paused(document: Document) -> bool:
    """Return whether Strimzi does not reconcile the object at present."""
    return text_map(document.body, "annotations").get(_PAUSED) == "true"


def imported_topic(
    document: Document, defaults: Defaults, metadata: MetadataRule = MetadataRule()
) -> ImportedTopic:
    """Return the topic that a KafkaTopic describes, to be imported.

    ``defaults``: values that the KafkaTopic may omit. ``metadata``: which labels and annotations
    are copied. Raises :class:`NotImported`.
    """
    body = document.body
    meta, name = supported_metadata(document)
    spec = field_map(body, "spec")
    status = body.get("status")
    topic_id = status.get("topicId") if isinstance(status, Mapping) else None
    annotations, labels = text_map(body, "annotations"), text_map(body, "labels")
    # Strimzi ignores an unmanaged topic, so its Topic must not change it either.
    is_unmanaged = annotations.get(_MANAGED) == "false"
    return ImportedTopic(
        source=document.source,
        name=_name(spec, name),
        partitions=_count(spec, "partitions", defaults.partitions),
        replication_factor=_count(spec, "replicas", defaults.replication_factor),
        config=_config(spec),
        topic_id=topic_id if isinstance(topic_id, str) and _TOPIC_ID.fullmatch(topic_id) else "",
        object_name=name,
        labels=metadata.copied(labels),
        annotations=metadata.copied(annotations),
        is_paused=is_unmanaged or is_paused(document),
        remarks=tuple(_remarks(meta, spec)),
    )


def _remarks(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterable[str]:
    """Yield remarks for the user about parts of a KafkaTopic that a Topic cannot express."""
    for name in sorted(set(spec) - _FIELDS):
        yield f"spec.{name} is not a known field of a KafkaTopic; left out"
    if meta.get("deletionTimestamp"):
        yield (
            "it is being deleted together with its topic: wait, or let Strimzi release the topic "
            "first"
        )


def _name(spec: Mapping[str, Any], name: str) -> str:
    topic_name = spec.get("topicName")
    if topic_name is None:
        return name
    if not isinstance(topic_name, str):
        raise NotImported(f"spec.topicName {topic_name!r} is not text: put it in quotes")
    return topic_name


def _count(spec: Mapping[str, Any], name: str, default: int | None) -> int:
    value = spec.get(name)
    if value is None:
        if default is None:
            option = "--default-partitions" if name == "partitions" else "--default-replicas"
            raise NotImported(
                f"spec.{name} is missing, so Strimzi uses the brokers' default: set it with "
                f"{option}"
            )
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NotImported(f"spec.{name} {value!r} is not an integer of at least 1")
    return value


def _config(spec: Mapping[str, Any]) -> dict[str, str]:
    config = spec.get("config")
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise NotImported("spec.config is not a map of keys to values")
    return {str(name): _value(str(name), value) for name, value in config.items()}


def _value(name: str, value: object) -> str:
    """Convert a value as Strimzi does for Kafka: text, numbers and booleans."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, int | str) for item in value):
        return ",".join(str(item) for item in value)
    raise NotImported(f"spec.config.{name} {value!r} is not text, a number, true or false")


def field_map(body: Mapping[str, Any], name: str, path: str = "") -> Mapping[str, Any]:
    """Return a field that is a map; {} if it is missing. ``path`` precedes its name in errors.

    Raises :class:`NotImported` for any other value.
    """
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NotImported(f"{path}{name} is not a map")
    return value


def text_map(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return labels or annotations; {} for any other value."""
    meta = body.get("metadata")
    values = meta.get(name) if isinstance(meta, Mapping) else None
    return {str(k): str(v) for k, v in values.items()} if isinstance(values, Mapping) else {}
