"""Setting and removing the operator's finalizers.

By server-side apply under a field manager of their own, so that neither the user's applier nor
another writer of the operator owns them (kopf removes a finalizer that stands in its settings).
The uid travels with the request: an object made again under the same name is never touched, and
apply cannot create one.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import Json, Kind

MANAGER = "tidemark-finalizers"


def finalizers_of(body: Json) -> list[str]:
    """The finalizers that stand in an object."""
    return [str(name) for name in body["metadata"].get("finalizers") or []]


async def add_finalizer(api: KubeApi, kind: Kind, body: Json, finalizer: str) -> Json:
    """Set ``finalizer``; the object as it then is. ``Conflict`` if it is not the same object."""
    return await _apply(api, kind, body, [finalizer])


async def remove_finalizer(api: KubeApi, kind: Kind, body: Json, finalizer: str) -> Json:
    """Take ``finalizer`` away, also where another field manager owns it too."""
    now = await _apply(api, kind, body, [])
    standing = finalizers_of(now)
    if finalizer not in standing:
        return now
    meta = now["metadata"]
    index = standing.index(finalizer)
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
    if finalizers:
        metadata["finalizers"] = finalizers
    patch: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return await api.apply(
        kind, meta["namespace"], meta["name"], patch, manager=MANAGER, force=True
    )
