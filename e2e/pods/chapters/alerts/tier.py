"""A store that refuses one thing after the other, and objects of it that are not what they were.

For the chapter brokers get an account of their own in the store, whose rights change: an
administrator's has all.
"""

import base64
import io
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition
from minio import Minio
from minio.credentials import StaticProvider
from minio.minioadmin import MinioAdmin

from e2e.pods.chapters.alerts.fault import Fault
from e2e.pods.client import BOOTSTRAP
from e2e.pods.objects import BUCKET, KEYS, NAMESPACE, STORE, STORE_PORT
from e2e.pods.stage import PARTITIONS, Stage

TOPIC = "alerts-tiered"
RECORDS = 4500
POLICY = "brokers"
ACCOUNT = {"accessKeyId": "e2e-brokers", "secretAccessKey": "e2e-secret-of-brokers"}
READ_S = 4


@dataclass(frozen=True, slots=True)
class Store:
    """MinIO, as its administrator."""

    objects: Minio
    accounts: MinioAdmin

    @classmethod
    def reached(cls) -> "Store":
        """The one of a run."""
        where = f"minio.{STORE}.svc:{STORE_PORT}"
        keys = KEYS["accessKeyId"], KEYS["secretAccessKey"]
        return cls(
            Minio(where, *keys, secure=False),
            MinioAdmin(endpoint=where, credentials=StaticProvider(*keys), secure=False),
        )

    def refuse(self, *actions: str) -> None:
        """These to the brokers' account, of segments; nothing else."""
        # Only segments are refused. Heads stay writable, so brokers can record their errors.
        data = f"arn:aws:s3:::{BUCKET}/data/*"
        statements = [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}]
        if actions:
            statements.append({"Effect": "Deny", "Action": list(actions), "Resource": [data]})
        self.accounts.policy_add(POLICY, policy={"Version": "2012-10-17", "Statement": statements})

    def segments(self) -> list[str]:
        """The keys of those of :data:`TOPIC`."""
        found = self.objects.list_objects(BUCKET, prefix=f"data/{TOPIC}-", recursive=True)
        keys = [str(item.object_name) for item in found]
        return [key for key in keys if key.endswith(".log")]

    def put(self, key: str, data: bytes) -> None:
        """An object, whatever was there."""
        self.objects.put_object(BUCKET, key, io.BytesIO(data), len(data))


def prepare(stage: Stage) -> None:
    """Brokers with an account of their own, and a topic whose segments leave their disks."""
    store = Store.reached()
    # The brokers' own account, whose rights the faults change.
    store.accounts.user_add(ACCOUNT["accessKeyId"], ACCOUNT["secretAccessKey"])
    store.refuse()
    store.accounts.attach_policy([POLICY], user=ACCOUNT["accessKeyId"])
    _use(stage, ACCOUNT, {"remote.delete.delay.ms": "0"})
    stage.make_topic(
        TOPIC,
        config={"segment.bytes": "1048576", "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    stage.produce(TOPIC, RECORDS)
    # The faults below need segments that are only in the tier.
    stage.wait("segments in the tier", lambda: _few(len(store.segments())))


def _few(number: int) -> str:
    return "" if number >= 2 * PARTITIONS else f"{number} segments"


def tidy(stage: Stage) -> None:
    """The account that the installation had."""
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "topics.tidemark.dev", TOPIC)
    del stage.written[TOPIC]
    _use(stage, KEYS, {"remote.delete.delay.ms": None})
    stage.recovered()
    Store.reached().accounts.user_remove(ACCOUNT["accessKeyId"])


def _use(stage: Stage, keys: dict[str, str], config: dict[str, str | None]) -> None:
    """The Cluster's change has the operator read the Secret at once."""
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in keys.items()}
    for what, patch in (
        (("secret", "tier"), {"data": encoded}),
        (("clusters.tidemark.dev", "tidemark"), {"spec": {"config": config}}),
    ):
        stage.kubernetes.run(
            *("--namespace", NAMESPACE, "patch", *what, "--type=merge"),
            *("--patch", json.dumps(patch)),
        )


@contextmanager
def _damaged(stage: Stage) -> Iterator[None]:
    """A segment of other bytes is read, and one lies there that nothing names."""
    store = Store.reached()
    # The oldest segment of partition 0 gets zeros in place of its records, and a second object that
    # no manifest names is beside it.
    key = min(key for key in store.segments() if "/0/" in key)
    good = store.objects.get_object(BUCKET, key).read()
    folder, _, _ = key.rpartition("/")
    stray = f"{folder}/{0:020}-{_text_of(uuid.uuid4())}.log"
    store.put(key, bytes(len(good)))
    store.put(stray, b"nobody's")
    try:
        stage.wait("a read that fails", lambda: "disks have it still" if _read(0) else "")
        yield
    finally:
        store.put(key, good)
        store.objects.remove_object(BUCKET, stray)
    stage.wait("a sound read", lambda: "" if _read(0) else "nothing is read")


def _text_of(number: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


def _read(offset: int) -> bool:
    """Whether partition 0 has a record there."""
    options = {"bootstrap.servers": BOOTSTRAP, "group.id": "e2e", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    try:
        message = consumer.poll(READ_S)
        return message is not None and message.error() is None
    finally:
        consumer.close()


@contextmanager
def _refused(stage: Stage) -> Iterator[None]:
    """Segments are read, and neither written nor deleted; more are closed, and some are to go."""
    store = Store.reached()
    store.refuse("s3:PutObject", "s3:DeleteObject")
    try:
        stage.produce(TOPIC, RECORDS)
        stage.kubernetes.apply(_deletion())
        yield
    finally:
        store.refuse()
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "recorddeletions.tidemark.dev", TOPIC)


def _deletion() -> dict[str, object]:
    partitions = [{"partition": number, "beforeOffset": 1500} for number in range(PARTITIONS)]
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "RecordDeletion",
        "metadata": {"name": TOPIC, "namespace": NAMESPACE},
        "spec": {"topicRef": {"name": TOPIC}, "partitions": partitions},
    }


@contextmanager
def _shut_out(stage: Stage) -> Iterator[None]:
    """The account is closed."""
    accounts = Store.reached().accounts
    accounts.user_disable(ACCOUNT["accessKeyId"])
    try:
        yield
    finally:
        accounts.user_enable(ACCOUNT["accessKeyId"])


FAULTS = (
    Fault(
        what="a segment of other bytes, and one that nothing names",
        alerts=("TidemarkTierDamaged", "TidemarkTierOrphans"),
        caused=_damaged,
        beside_pods=True,
    ),
    Fault(
        what="a store that takes and deletes nothing",
        alerts=(
            "TidemarkTierCopiesFail",
            "TidemarkTierPartitionInError",
            "TidemarkTierDeletionsFail",
            "TidemarkTierCopyLags",
        ),
        caused=_refused,
        beside_pods=True,
    ),
    Fault(
        what="a store that rejects every client",
        alerts=("TidemarkTierUnavailable",),
        caused=_shut_out,
        beside_pods=True,
    ),
)
