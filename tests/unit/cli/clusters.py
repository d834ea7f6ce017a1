"""Snapshots of clusters as an API server returns them: well, and in five incidents."""

import dataclasses
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.topic_rows import TopicRows
from tidemark_operator.controller.state.model import PartitionRow

NOW = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
_SINCE = "2026-03-01T11:55:00Z"

Json = dict[str, Any]


def body(kind: str, name: str, *conditions: str, spec: Json | None = None, **status: Any) -> Json:
    """Return an object. A condition is ``Type=Status Reason: message``."""
    # Such as "Ready=False Fenced: no heartbeat".
    listed = []
    for text in conditions:
        heading, _, message = text.partition(": ")
        condition, _, reason = heading.partition(" ")
        type_, _, value = condition.partition("=")
        listed.append(
            {
                "type": type_,
                "status": value,
                "reason": reason,
                "message": message,
                "lastTransitionTime": _SINCE,
            }
        )
    return {
        "kind": kind,
        "metadata": {"name": name, "creationTimestamp": _SINCE},
        "spec": spec or {},
        "status": {"conditions": listed, **status},
    }


def row(partition: int, leader: int, replicas: Sequence[int], **changes: Any) -> PartitionRow:
    """Return a partition of topic ``orders`` with every real replica in sync."""
    return PartitionRow(
        topic_id=uuid.UUID(int=1),
        name="orders",
        partition=partition,
        leader=leader,
        leader_epoch=partition,
        partition_epoch=3,
        replicas=tuple(replicas),
        **{"isr": tuple(node for node in replicas if node >= 0), **changes},
    )


def lease(renewed_s_ago: float, holder: str | None = "tidemark-operator-0-1-f8919e") -> Json:
    """Return the operator's Lease, of 10 s."""
    renewed = NOW - dt.timedelta(seconds=renewed_s_ago)
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": renewed.isoformat()}
    return {"spec": spec}


def broker(node_id: int, *conditions: str) -> Json:
    """Return a Broker; without conditions it serves."""
    return body(
        "Broker",
        f"broker-{node_id}",
        *(conditions or ("Ready=True Serving: serves clients",)),
        spec={"nodeId": node_id},
        logBytes=1_234_567 * node_id,
    )


def topic(
    name: str, *conditions: str, rows: Sequence[PartitionRow] = (), **status: Any
) -> TopicRows:
    """Return a Topic; without conditions it is served."""
    serving = ("Ready=True Serving: every partition has a leader",)
    return TopicRows(name, body("Topic", name, *(conditions or serving), **status), tuple(rows))


TIERED = {
    "tiering": {"state": "Enabled", "epoch": 1, "remoteSegments": 12, "remoteBytes": 9_000_000}
}
ORDERS = [row(0, 1, (1, 2, 3)), row(1, 2, (2, 3, 1)), row(2, 3, (3, 1, 2))]
INTERNAL = TopicRows(
    "consumer-offsets-68c8",
    {
        **body(
            "Topic", "consumer-offsets-68c8", "Ready=True Serving: every partition has a leader"
        ),
        "metadata": {
            "name": "consumer-offsets-68c8",
            "creationTimestamp": _SINCE,
            "labels": {"tidemark.dev/internal": "true"},
        },
        "spec": {"topicName": "__consumer_offsets"},
    },
    (),
)

WELL = ClusterSnapshot(
    clusters=[
        body(
            "Cluster",
            "tidemark",
            "Ready=True Serving: 3 brokers live",
            "RemoteStorageReady=True Available: the remote tier is available",
        )
    ],
    brokers=[broker(1), broker(2), broker(3)],
    topics=[
        INTERNAL,
        topic("clicks", rows=[row(0, 3, (3, 1))]),
        topic("orders", rows=ORDERS, **TIERED),
    ],
    users=[body("User", "ann", "Ready=True Usable: ", username="ann", secret="ann")],
    exports=[
        body(
            "Export",
            "orders-daily",
            "Ready=True Running: the job runs",
            "Exporting=True UpToDate: the table keeps up",
            spec={"topicRef": {"name": "orders"}, "table": {"name": "lake.orders"}},
            lag=1200,
            rows=7_000_000,
            currentTime="2026-03-01T11:59:00Z",
            observedTime="2026-03-01T11:59:40Z",
            lagSeconds=40,
            exportedOffsets=7_100_000,
            cost={"cpuSeconds": 96, "writtenBytes": 2_133_000_000, "cpuSecondsPerGigabyte": 45},
        )
    ],
    deletions=[],
    lease=lease(1.0),
    read_at=NOW,
)


def changed(**changes: Any) -> ClusterSnapshot:
    """Return the cluster that is well, with some of its objects replaced."""
    return dataclasses.replace(WELL, **changes)


REFUSED = "access key refused by the store http://minio:9000 (Secret tier): correct the keys"
OFFLINE = (
    "partition 2 has no leader: start broker 3 (the last to have all records), or delete its "
    "Broker if it never comes back"
)
#: By name: the cluster well, and in five incidents.
CLUSTERS = {
    "well": WELL,
    "operator-killed": changed(lease=lease(95.0)),
    "broker-down": changed(
        brokers=[
            broker(1),
            broker(2),
            broker(
                3,
                "Ready=False Fenced: no heartbeat from broker 3 for 12 s: start it, or see its log",
                "Reconciling=True Fenced: no heartbeat from broker 3 for 12 s: start it",
            ),
        ],
        topics=[
            INTERNAL,
            topic("clicks", rows=[row(0, 1, (3, 1), isr=(1,))]),
            topic(
                "orders",
                "Ready=True Serving: every partition has a leader",
                "FullyReplicated=False ReplicasBehind: replicas of 3 partitions are not in sync: "
                "broker 3 is down",
                rows=[dataclasses.replace(item, leader=1, isr=(1, 2)) for item in ORDERS],
                **TIERED,
            ),
        ],
    ),
    "key-refused": changed(
        clusters=[
            body(
                "Cluster",
                "tidemark",
                "Ready=True Serving: 3 brokers live",
                f"RemoteStorageReady=False RemoteStorageUnavailable: {REFUSED}",
            )
        ],
        topics=[
            INTERNAL,
            topic("clicks", rows=[row(0, 3, (3, 1))]),
            topic(
                "orders",
                "Ready=True Serving: every partition has a leader",
                f"TieringSettled=False StoreAccessDenied: {REFUSED}",
                rows=ORDERS,
                **TIERED,
            ),
        ],
    ),
    "partition-offline": changed(
        brokers=[
            broker(1),
            broker(2, "Ready=False ShutDown: broker 2 has shut down: start it again"),
            broker(3, "Ready=False Fenced: no heartbeat from broker 3 for 2 min: start it"),
        ],
        topics=[
            topic(
                "orders",
                f"Ready=False PartitionsOffline: {OFFLINE}",
                f"Reconciling=True PartitionsOffline: {OFFLINE}",
                "FullyReplicated=False ReplicasBehind: replicas of 3 partitions are not in sync",
                rows=[
                    dataclasses.replace(ORDERS[0], isr=(1,), elr=(2,)),
                    dataclasses.replace(ORDERS[1], leader=1, isr=(1,)),
                    dataclasses.replace(
                        ORDERS[2], leader=-1, isr=(), elr=(3,), last_known_elr=(1,)
                    ),
                ],
                **TIERED,
            ),
        ],
    ),
    "placeholders": changed(
        topics=[
            topic(
                "orders",
                "Ready=True Serving: every partition has a leader",
                "FullyReplicated=False Placeholders: 2 replicas wait for a broker: start 1 more",
                rows=[row(0, 1, (1, 2, -1)), row(1, 2, (2, 1, -1))],
                **TIERED,
            ),
        ],
    ),
}
