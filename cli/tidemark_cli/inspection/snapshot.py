"""The objects of one namespace, read at one time."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemark_cli.inspection.topic_rows import TopicRows, topics
from tidemark_kube.client import LEASE_NAME, KubeClient, KubeRequestError

Json = dict[str, Any]
#: HTTP statuses for a resource that the API server does not serve or does not let the user read.
_NOT_SERVED, _FORBIDDEN = 404, 403


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The objects that ``tidemark status`` and ``tidemark why`` evaluate.

    ``lease`` is None if there is no Lease, and {} if the user may not read it. ``read_at`` is the
    API server's time, as the ages of objects are those of its clock.
    """

    clusters: list[Json]
    brokers: list[Json]
    topics: list[TopicRows]
    users: list[Json]
    exports: list[Json]
    deletions: list[Json]
    lease: Json | None
    read_at: dt.datetime

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


def read_snapshot(kube: KubeClient) -> ClusterSnapshot:
    """Read the objects of the client's namespace. Raises :class:`KubeRequestError`."""
    return ClusterSnapshot(
        clusters=kube.objects("Cluster"),
        brokers=kube.objects("Broker"),
        topics=topics(kube),
        users=kube.objects("User"),
        # The definitions of an older version may lack these kinds.
        exports=_if_served(kube, "Export"),
        deletions=_if_served(kube, "RecordDeletion"),
        lease=read_lease(kube),
        read_at=kube.now(),
    )


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
