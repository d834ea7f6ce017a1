"""Strimzi's ``KafkaTopic`` objects, as they stand in Git or come from ``kubectl get -o yaml``.

Both served versions have the same spec: ``topicName``, ``partitions``, ``replicas``, ``config``.
Strimzi resets what a manifest does not name to the broker's default, and deletes a topic with its
object; ours leaves alone what it does not name, and what is imported is released (``Orphan``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.topics import NotImported, Wanted

GROUP = "kafka.strimzi.io"
VERSIONS = ("v1", "v1beta2")
CLUSTER_LABEL = "strimzi.io/cluster"
_MANAGED = "strimzi.io/managed"
_PAUSED = "strimzi.io/pause-reconciliation"
_FIELDS = frozenset({"topicName", "partitions", "replicas", "config"})
#: Labels and annotations of Strimzi's own, and those by which tools know what they have made: ours
#: would be taken for theirs.
_OTHERS = (
    "strimzi.io/",
    "kubectl.kubernetes.io/",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "meta.helm.sh/",
    "helm.sh/",
)
_TOPIC_ID = re.compile("[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a KafkaTopic inherits from its brokers where it does not say: None: not known."""

    partitions: int | None = None
    replication_factor: int | None = None


def is_topic(document: Document) -> bool:
    """Is it one of Strimzi's topics, of whatever version?"""
    version = str(document.body.get("apiVersion", ""))
    return document.body.get("kind") == "KafkaTopic" and version.partition("/")[0] == GROUP


def is_strimzis(document: Document) -> bool:
    """Is it any object of Strimzi's?"""
    return str(document.body.get("apiVersion", "")).partition("/")[0].endswith("strimzi.io")


def clusters(documents: Iterable[Document]) -> list[str]:
    """The Strimzi clusters that topics name, in order; "" for those that name none."""
    return sorted({_text_map(each.body, "labels").get(CLUSTER_LABEL, "") for each in documents})


def wanted(document: Document, defaults: Defaults) -> Wanted:
    """What a KafkaTopic wants. Raises :class:`NotImported`."""
    body = document.body
    version = str(body["apiVersion"]).partition("/")[2]
    if version not in VERSIONS:
        known = " and ".join(f"{GROUP}/{each}" for each in VERSIONS)
        raise NotImported(f"apiVersion {body['apiVersion']} is not read; {known} are")
    meta, spec = _mapping(body, "metadata"), _mapping(body, "spec")
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise NotImported("metadata.name is missing")
    status = body.get("status")
    topic_id = status.get("topicId") if isinstance(status, Mapping) else None
    annotations, labels = _text_map(body, "annotations"), _text_map(body, "labels")
    is_unmanaged = annotations.get(_MANAGED) == "false"
    return Wanted(
        source=document.source,
        name=_name(spec, name),
        partitions=_count(spec, "partitions", defaults.partitions),
        replication_factor=_count(spec, "replicas", defaults.replication_factor),
        config=_config(spec),
        topic_id=topic_id if isinstance(topic_id, str) and _TOPIC_ID.fullmatch(topic_id) else "",
        object_name=name,
        labels=_users(labels),
        annotations=_users(annotations),
        is_paused=is_unmanaged or annotations.get(_PAUSED) == "true",
        remarks=tuple(_remarks(meta, spec, is_unmanaged=is_unmanaged)),
    )


def _users(found: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in found.items() if not key.startswith(_OTHERS)}


def _remarks(
    meta: Mapping[str, Any], spec: Mapping[str, Any], *, is_unmanaged: bool
) -> Iterable[str]:
    for name in sorted(set(spec) - _FIELDS):
        yield f"spec.{name} is not a field of a KafkaTopic that is known here; left out"
    if is_unmanaged:
        yield (
            f"{_MANAGED} is false: the Topic is made paused (annotation tidemark.dev/paused), and "
            "released when it is deleted"
        )
    if meta.get("deletionTimestamp"):
        yield "it is being deleted, and its topic with it: wait, or have Strimzi release it first"


def _name(spec: Mapping[str, Any], name: str) -> str:
    found = spec.get("topicName")
    if found is None:
        return name
    if not isinstance(found, str):
        raise NotImported(f"spec.topicName {found!r} is no text: put it in quotes")
    return found


def _count(spec: Mapping[str, Any], name: str, default: int | None) -> int:
    value = spec.get(name)
    if value is None:
        if default is None:
            option = "--default-partitions" if name == "partitions" else "--default-replicas"
            raise NotImported(
                f"spec.{name} is missing, and Strimzi takes the brokers' default: give it with "
                f"{option}"
            )
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NotImported(f"spec.{name} {value!r} is no whole number from 1 on")
    return value


def _config(spec: Mapping[str, Any]) -> dict[str, str]:
    config = spec.get("config")
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise NotImported("spec.config is no map of keys to values")
    return {str(name): _value(str(name), value) for name, value in config.items()}


def _value(name: str, value: object) -> str:
    """As Strimzi tells it to Kafka: text, numbers and truth values."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(each, int | str) for each in value):
        return ",".join(str(each) for each in value)
    raise NotImported(f"spec.config.{name} {value!r} is neither a text, a number nor true or false")


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NotImported(f"{name} is no map")
    return value


def _text_map(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Labels or annotations; what else stands there is none."""
    meta = body.get("metadata")
    found = meta.get(name) if isinstance(meta, Mapping) else None
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}
