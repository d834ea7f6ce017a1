"""Owners of an object's fields, from its ``managedFields`` (server-side apply).

An applier sends every field that it owns: a field that it leaves out is removed. A change therefore
starts with the fields that Kafka's clients own. A change of another manager's field is a conflict,
which the API server reports. It does not report that a field stays after a client gave it up, nor
that an object is deleted which others have described. Callers check these two cases here.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tidemark_operator.kube.kinds import TOPIC, Json, Kind

MANAGER = "tidemark-kafka-clients"

_FIELD = "f:"
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
Path = tuple[str, ...]


def client_fields(body: Json) -> Json:
    """Return the fields of ``spec`` and ``metadata`` that Kafka's clients own, with present values.

    Only labels and annotations count in ``metadata``; fields that the API server adds are left out.
    """
    fields: dict[str, Any] = {}
    for entry in _entries(body):
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply":
            fields = entry.get("fieldsV1") or {}
    kept = _values(fields, body)
    return {name: kept[name] for name in ("metadata", "spec") if kept.get(name)}


def patch_of(body: Json, kind: Kind = TOPIC) -> Json:
    """Return the fields that Kafka's clients own, as an apply patch to change.

    The uid prevents that the apply creates another object. The resourceVersion prevents that it
    undoes changes made since the object was read.
    """
    kept = deepcopy(client_fields(body))
    own = {name: body["metadata"][name] for name in _IDENTITY}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {**kept.get("metadata", {}), **own},
        "spec": kept.get("spec", {}),
    }


def holder(body: Json, path: Path) -> str | None:
    """Return another field manager that owns a field or one below it, None if none does.

    ``path`` is for example ``("spec", "config", "retention.ms")``. Owners of subresources such as
    the status do not count.
    """
    for entry in _entries(body):
        if entry.get("manager") == MANAGER or entry.get("subresource"):
            continue
        fields: Any = entry.get("fieldsV1") or {}
        for name in path:
            fields = fields.get(_FIELD + name) if isinstance(fields, Mapping) else None
            if fields is None:
                break
        if fields is not None:
            return str(entry.get("manager", "?"))
    return None


def _entries(body: Json) -> Iterator[Mapping[str, Any]]:
    yield from body["metadata"].get("managedFields") or ()


def _values(fields: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the part of ``value`` that ``fields`` names; lists are owned as a whole."""
    found = {}
    for name, below in fields.items():
        key = name.removeprefix(_FIELD)
        if not name.startswith(_FIELD) or not isinstance(value, Mapping) or key not in value:
            continue
        inner = value[key]
        # `k:` and `v:` entries are items of lists, `.` is the map itself.
        parts = {name: below[name] for name in below if name.startswith(_FIELD)}
        found[key] = _values(parts, inner) if parts and isinstance(inner, Mapping) else inner
    return found
