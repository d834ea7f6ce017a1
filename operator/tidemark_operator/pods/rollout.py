"""What a StatefulSet says of itself: whose it is, whether its one pod is the wanted one, and
ready."""

from tidemark_operator.pods.identity import MANAGER, Json
from tidemark_operator.resources.names import BROKER_LABEL

_OF_THE_POD = ("template", "updateStrategy")
_CONTENT = frozenset({"f:spec", "f:data", "f:binaryData"})


def is_complete(stateful_set: Json) -> bool:
    """Its controller has seen what is wanted, and the pod of that is ready."""
    status = stateful_set.get("status") or {}
    return (
        int(status.get("observedGeneration") or 0) >= int(stateful_set["metadata"]["generation"])
        and int(status.get("updatedReplicas") or 0) >= 1
        and int(status.get("readyReplicas") or 0) >= 1
    )


def is_unmade(stateful_set: Json) -> bool:
    """Its controller has seen what is wanted, and there is no pod."""
    status = stateful_set.get("status") or {}
    seen = int(status.get("observedGeneration") or 0)
    return seen >= int(stateful_set["metadata"]["generation"]) and not status.get("replicas")


def replaces_pod(live: Json, wanted: Json) -> bool:
    """Whether the pod may become another one by ``wanted``; both as the API server answers,
    defaults and all, so that nothing differs but what is to be. A strategy that somebody has
    changed may hold back a pod that was changed too: setting it back lets go."""
    return any(live["spec"].get(part) != wanted["spec"].get(part) for part in _OF_THE_POD)


def is_ours(live: Json, wanted: Json) -> bool:
    """Whether an object was made for this Broker: by its owner, or, where the Broker was made
    again, by its labels. Either may have been taken off by hand."""
    owners, labels = (live["metadata"].get(part) or () for part in ("ownerReferences", "labels"))
    meta = wanted["metadata"]
    uids = {each["uid"] for each in meta["ownerReferences"]}
    return not uids.isdisjoint(each["uid"] for each in owners) or all(
        name in labels and labels[name] == value for name, value in meta["labels"].items()
    )


def is_ours_of_cluster(live: Json, wanted: Json) -> bool:
    """The same of what all brokers of a Cluster have in common, and none has for itself."""
    labels = live["metadata"].get("labels") or {}
    return is_ours(live, wanted) and BROKER_LABEL not in labels


def whose(live: Json) -> str:
    """To whom an object belongs that is not ours, as far as it says."""
    owners = live["metadata"].get("ownerReferences") or ()
    named = [f"{each.get('kind')} {each.get('name')}" for each in owners]
    return ", ".join(named or other_managers(live)) or "somebody else"


def other_managers(live: Json) -> list[str]:
    """Who else says what an object holds, by its ``managedFields``."""
    return sorted(
        {
            str(entry.get("manager"))
            for entry in live["metadata"].get("managedFields") or ()
            if entry.get("manager") != MANAGER
            and not entry.get("subresource")
            and not _CONTENT.isdisjoint(entry.get("fieldsV1") or {})
        }
    )
