"""The kinds that the operator reads and writes, and their paths in the API. Our own have their
names from ``resources``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tidemark_operator.resources import (
    broker,
    cluster,
    export,
    partition_slice,
    record_deletion,
    topic,
    user,
)
from tidemark_operator.resources.names import GROUP, VERSION
from tidemark_operator.resources.schema import ResourceKind

#: A Kubernetes object or a part of one, as JSON. The API server is the library's edge here: what
#: comes in is given a type by the models in ``resources`` before anything is decided on it.
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
        """``group/version`` as it stands in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of its subresource; without a
        namespace of what belongs to none."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", _segment(namespace)] if namespace else []), self.plural]
        return "/".join(parts + [_segment(part) for part in (name, subresource) if part])

    def key(self, namespaced_name: str) -> "Key":
        """The key of ``namespace/name``."""
        namespace, _, name = namespaced_name.partition("/")
        return Key(self.kind, namespace, name)


def _segment(name: str) -> str:
    """One segment of a path, whatever stands in it: ``a/../b`` names one object, not another one's
    path. Raises ValueError for what no object can be called and a path would make something of."""
    if name in (".", ".."):
        raise ValueError(f"{name!r} is not a valid object name")
    return quote(name, safe="")


def _own(resource: ResourceKind) -> Kind:
    return Kind(GROUP, VERSION, resource.plural, resource.kind)


TOPIC = _own(topic.TOPIC)
BROKER = _own(broker.BROKER)
RECORD_DELETION = _own(record_deletion.RECORD_DELETION)
CLUSTER = _own(cluster.CLUSTER)
USER = _own(user.USER)
EXPORT = _own(export.EXPORT)
PARTITION_SLICE = _own(partition_slice.PARTITION_SLICE)
SECRET = Kind("", "v1", "secrets", "Secret")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
JOB = Kind("batch", "v1", "jobs", "Job")
POD = Kind("", "v1", "pods", "Pod")
NODE = Kind("", "v1", "nodes", "Node")
SERVICE = Kind("", "v1", "services", "Service")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")

#: The kinds whose objects wake the reconcilers: those of which there are few, and those of which
#: there are thousands.
FEW = (CLUSTER, BROKER)
MANY = (TOPIC, RECORD_DELETION, USER, EXPORT)
WATCHED = (*FEW, *MANY)
#: By the name that a key has.
BY_KIND = {kind.kind: kind for kind in WATCHED}


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object to reconcile; what the queue holds."""

    kind: str
    namespace: str
    name: str

    @property
    def namespaced_name(self) -> str:
        """``namespace/name``, by which the core knows an object."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespaced_name}"


def key_of(body: Json) -> Key:
    """The key of an object as the API server gave it."""
    meta = body["metadata"]
    return Key(str(body["kind"]), str(meta["namespace"]), str(meta["name"]))


def resource_version(body: Json) -> int:
    """The resourceVersion as a number. For one resource type the API server's versions grow."""
    try:
        return int(body["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return 0


class Listed(list[Json]):
    """All objects of a kind as they were at one moment: ``resource_version`` is that of the list.
    What is newer than that, or was deleted since, a watch tells of."""

    def __init__(self, bodies: Iterable[Json] = (), *, resource_version: int) -> None:
        super().__init__(bodies)
        self.resource_version = resource_version


def reference(body: Json) -> Json:
    """An ObjectReference to ``body``, for an Event's ``regarding``."""
    meta = body["metadata"]
    return {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "resourceVersion": meta["resourceVersion"],
    }
