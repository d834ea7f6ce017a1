"""Which fields of an object belong to whom, by its ``managedFields`` (server-side apply).

Whoever applies sends all that it holds: what it leaves out is taken away. So a change begins with
what Kafka's clients hold of the object already. What others hold is theirs: a change of it is a
conflict, which the API server reports; that a field stays which a client gave up, and that an
object is deleted which others have described, it does not, and is asked here.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tidemark_operator.kube.kinds import TOPIC, Json, Kind

MANAGER = "tidemark-kafka-clients"

_FIELD = "f:"
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
Path = tuple[str, ...]


def held(body: Json) -> Json:
    """``spec`` and ``metadata`` (labels, annotations) as far as Kafka's clients hold them, with the
    object's present values; without what the API server adds."""
    fields: dict[str, Any] = {}
    for entry in _entries(body):
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply":
            fields = entry.get("fieldsV1") or {}
    kept = _values(fields, body)
    return {name: kept[name] for name in ("metadata", "spec") if kept.get(name)}


def patch_of(body: Json, kind: Kind = TOPIC) -> Json:
    """What Kafka's clients hold of an object, to be changed and applied; with the uid, so that no
    other one is made, and the resourceVersion, so that what was applied since this one was read is
    not undone."""
    kept = deepcopy(held(body))
    own = {name: body["metadata"][name] for name in _IDENTITY}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {**kept.get("metadata", {}), **own},
        "spec": kept.get("spec", {}),
    }


def holder(body: Json, path: Path) -> str | None:
    """Who else holds the field at ``path`` (``spec``, ``config``, ``retention.ms``), or one below
    it; None: nobody. The status is nobody's in this sense."""
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
    """The part of ``value`` that ``fields`` names; lists are held as a whole."""
    found = {}
    for name, below in fields.items():
        key = name.removeprefix(_FIELD)
        if not name.startswith(_FIELD) or not isinstance(value, Mapping) or key not in value:
            continue
        inner = value[key]
        parts = {each: below[each] for each in below if each.startswith(_FIELD)}
        found[key] = _values(parts, inner) if parts and isinstance(inner, Mapping) else inner
    return found
