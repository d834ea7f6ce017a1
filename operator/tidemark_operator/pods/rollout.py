"""What a StatefulSet says of itself: whether its one pod is the wanted one, and ready."""

from tidemark_operator.pods.identity import Json


def is_complete(stateful_set: Json) -> bool:
    """Its controller has seen what is wanted, and the pod of that is ready."""
    status = stateful_set.get("status") or {}
    return (
        int(status.get("observedGeneration") or 0) >= int(stateful_set["metadata"]["generation"])
        and int(status.get("updatedReplicas") or 0) >= 1
        and int(status.get("readyReplicas") or 0) >= 1
    )


def replaces_pod(live: Json, wanted: Json) -> bool:
    """Whether the pod is another one by ``wanted``; both as the API server answers, defaults and
    all, so that nothing differs but what is to be."""
    return bool(live["spec"]["template"] != wanted["spec"]["template"])
