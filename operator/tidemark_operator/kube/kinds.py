"""Kinds that the operator reads and writes, and their API paths.

The names of our own kinds come from ``resources``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tidemark_operator.resources.names import GROUP, PLURALS, VERSION

#: A Kubernetes object or a part of one, as JSON. The API server is the library's edge here: the
#: models in ``resources`` give input a type before anything is decided on it.
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource type: group ("" for core), version, plural and kind."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """``group/version`` as in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of one object, or of its subresource.

        Cluster-scoped kinds use an empty namespace.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", _segment(namespace)] if namespace else []), self.plural]
        return "/".join(parts + [_segment(part) for part in (name, subresource) if part])

    def key(self, namespaced_name: str) -> "Key":
        """Return the key of ``namespace/name``."""
        namespace, _, name = namespaced_name.partition("/")
        return Key(self.kind, namespace, name)


def _segment(name: str) -> str:
    """Return one segment of a path, quoted: ``a/../b`` cannot name another object's path.

    Raises ValueError for ``.`` and ``..``, which no object can be called.
    """
    if name in (".", ".."):
        raise ValueError(f"{name!r} is not a valid object name")
    return quote(name, safe="")


def _own(kind: str) -> Kind:
    return Kind(GROUP, VERSION, PLURALS[kind], kind)


TOPIC = _own("Topic")
BROKER = _own("Broker")
RECORD_DELETION = _own("RecordDeletion")
CLUSTER = _own("Cluster")
USER = _own("User")
EXPORT = _own("Export")
PARTITION_SLICE = _own("PartitionSlice")
SECRET = Kind("", "v1", "secrets", "Secret")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
JOB = Kind("batch", "v1", "jobs", "Job")
SPARK_APPLICATION = Kind("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
POD = Kind("", "v1", "pods", "Pod")
NODE = Kind("", "v1", "nodes", "Node")
SERVICE = Kind("", "v1", "services", "Service")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")

#: Kinds whose objects wake the reconcilers: those with few objects, and those with thousands.
FEW = (CLUSTER, BROKER)
MANY = (TOPIC, RECORD_DELETION, USER, EXPORT)
WATCHED = (*FEW, *MANY)
#: Kinds by the name that a key contains.
BY_KIND = {kind.kind: kind for kind in WATCHED}


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Name of one object to reconcile; the element of the queue."""

    kind: str
    namespace: str
    name: str

    @property
    def namespaced_name(self) -> str:
        """``namespace/name``, by which the core identifies an object."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespaced_name}"


def key_of(body: Json) -> Key:
    """Return the key of an object from the API server."""
    meta = body["metadata"]
    return Key(str(body["kind"]), str(meta["namespace"]), str(meta["name"]))


def resource_version(body: Json) -> int:
    """Return the resourceVersion as a number; within one resource type it grows."""
    try:
        return int(body["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        # 0: older than every version. An object without a valid one never replaces another.
        return 0


class ObjectList(list[Json]):
    """All objects of a kind as of one moment; ``resource_version`` is that of the list.

    A watch from that version reports what is newer or was deleted since.
    """

    def __init__(self, bodies: Iterable[Json] = (), *, resource_version: int) -> None:
        super().__init__(bodies)
        self.resource_version = resource_version


def reference(body: Json) -> Json:
    """Return an ObjectReference to ``body``, for an Event's ``regarding``."""
    meta = body["metadata"]
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "resourceVersion": meta["resourceVersion"],
    }
