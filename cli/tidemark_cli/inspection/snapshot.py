"""The objects of one namespace, read at one time."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark_cli.inspection.topic_rows import TopicRows, condition, topics
from tidemark_kube.client import LEASE_NAME, KubeClient, KubeRequestError

Json = dict[str, Any]
#: Selector of the operator's and the brokers' pods.
PODS = "app.kubernetes.io/part-of=tidemark"
#: HTTP statuses for a resource that the API server does not serve or does not let the user read.
_NOT_SERVED, _FORBIDDEN = 404, 403


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The objects that ``tidemark status`` and ``tidemark why`` evaluate.

    ``lease`` is None if there is no Lease, and {} if the user may not read it. ``read_at`` is the
    API server's time, as the ages of objects are those of its clock. ``processes``: what is known
    about the process of each broker by node id.
    """

    clusters: list[Json]
    brokers: list[Json]
    topics: list[TopicRows]
    users: list[Json]
    exports: list[Json]
    deletions: list[Json]
    lease: Json | None
    read_at: dt.datetime
    processes: Mapping[int, str] = field(default_factory=dict)

    def objects(self) -> Iterator[tuple[str, Json]]:
        """Yield each object with its kind, in the order in which problems spread."""
        for kind, bodies in (
            ("Cluster", self.clusters),
            ("Broker", self.brokers),
            ("Topic", [topic.obj for topic in self.topics]),
            ("User", self.users),
            ("Export", self.exports),
            ("RecordDeletion", self.deletions),
        ):
            for body in bodies:
                yield kind, body


def read_snapshot(kube: KubeClient, processes: Mapping[int, str] | None = None) -> ClusterSnapshot:
    """Read the objects of the client's namespace. Raises :class:`KubeRequestError`.

    ``processes``: as in :class:`ClusterSnapshot`. None: they are in pods.
    """
    brokers = kube.objects("Broker")
    if processes is None:
        processes = _pod_states(kube, brokers)
    return ClusterSnapshot(
        processes=processes,
        clusters=kube.objects("Cluster"),
        brokers=brokers,
        topics=topics(kube),
        users=kube.objects("User"),
        # The definitions of an older version may lack these kinds.
        exports=_if_served(kube, "Export"),
        deletions=_if_served(kube, "RecordDeletion"),
        lease=read_lease(kube),
        read_at=kube.now(),
    )


def _pod_states(kube: KubeClient, brokers: Sequence[Json]) -> dict[int, str]:
    """Return what the kubelet says about the pods of brokers that are not ready, by node id."""
    if all(condition(broker, "Ready").get("status") == "True" for broker in brokers):
        return {}
    path = f"/api/v1/namespaces/{kube.namespace}/pods"
    try:
        pods = kube.read_json(path, query=[("labelSelector", PODS)])["items"]
    except KubeRequestError:
        return {}  # without the permission everything else can still be shown
    by_name = {str(pod["metadata"]["name"]): pod for pod in pods}
    return {
        int(broker["spec"]["nodeId"]): pod_text(by_name[name])
        for broker in brokers
        if (name := f"{broker['metadata']['name']}-0") in by_name
    }


def pod_text(pod: Json) -> str:
    """Return the state of a pod's first container: waiting, ended, or running."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    if not containers:
        return f"its pod is {status.get('phase', 'Unknown')}"
    first = containers[0]
    ((state, details), *_) = (first.get("state") or {"unknown": {}}).items()
    ended = details if state == "terminated" else (first.get("lastState") or {}).get("terminated")
    last = "" if not ended else f", last exit: {ended.get('reason')} ({ended.get('exitCode')})"
    if state == "running":
        ready = "ready" if first.get("ready") else "not ready"
        return f"its pod runs since {details.get('startedAt')} and is {ready}{last}"
    return f"its pod is {details.get('reason', state)}{last}"


def _if_served(kube: KubeClient, kind: str) -> list[Json]:
    try:
        return kube.objects(kind)
    except KubeRequestError as error:
        if error.status == _NOT_SERVED:
            return []
        raise


def read_lease(kube: KubeClient) -> Json | None:
    """Return the operator's Lease, None if there is none, and {} if the user may not read it."""
    try:
        return kube.lease(LEASE_NAME)
    except KubeRequestError as error:
        # Without the permission everything else can still be shown.
        if error.status == _FORBIDDEN:
            return {}
        raise
