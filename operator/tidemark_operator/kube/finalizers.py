"""Addition and removal of the operator's finalizers.

Server-side apply under a field manager of their own is used. So neither the user's applier nor
another writer of the operator owns them; kopf removes a finalizer that is in its settings. The uid
is part of the request: a recreated object of the same name is never changed, and apply cannot
create one.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import Json, Kind

MANAGER = "tidemark-finalizers"


def finalizers_of(body: Json) -> list[str]:
    """Return the finalizers of an object."""
    return [str(name) for name in body["metadata"].get("finalizers") or []]


async def add_finalizer(api: KubeApi, kind: Kind, body: Json, finalizer: str) -> Json:
    """Add ``finalizer`` and return the object. ``Conflict`` if it is another object of the name."""
    return await _apply(api, kind, body, [finalizer])


async def remove_finalizer(api: KubeApi, kind: Kind, body: Json, finalizer: str) -> Json:
    """Remove ``finalizer`` from an object, even if another field manager owns it too.

    Returns the object as written.
    """
    now = await _apply(api, kind, body, [])
    remaining = finalizers_of(now)
    if finalizer not in remaining:
        return now
    # Another manager owns the finalizer too, so apply left it: patch it out, testing its position.
    meta = now["metadata"]
    index = remaining.index(finalizer)
    path = f"/metadata/finalizers/{index}"
    patch: list[Json] = [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "test", "path": path, "value": finalizer},
        {"op": "remove", "path": path},
    ]
    return await api.json_patch(kind, meta["namespace"], meta["name"], patch)


async def _apply(api: KubeApi, kind: Kind, body: Json, finalizers: list[str]) -> Json:
    meta = body["metadata"]
    metadata: Json = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    # Apply removes the fields that this manager owned and does not send any more.
    if finalizers:
        metadata["finalizers"] = finalizers
    patch: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return await api.apply(kind, patch, manager=MANAGER, force=True)
