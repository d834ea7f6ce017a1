"""An installation grows from two brokers to three, and its first records are written and read."""

import functools
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.objects import NAMESPACE, STORE
from e2e.pods.progress import Failed
from e2e.pods.stage import BOOTSTRAP, BROKERS, PARTITIONS, RECORDS, Stage
from tests.helm import BASE_CHART

TOPIC = "orders"
CLIENT_TIMEOUT_S = 60


def _store(stage: Stage) -> None:
    stage.kubernetes.apply(objects.namespace(STORE), objects.namespace(NAMESPACE))
    for name in (STORE, NAMESPACE):
        stage.wait(f"the account of {name}", functools.partial(_account, stage, name))
    stage.kubernetes.apply(*objects.store(), objects.credentials(), objects.client())
    stage.pod_ready(STORE, "minio")
    stage.pod_ready(NAMESPACE, "client")


def _account(stage: Stage, namespace: str) -> str:
    there = stage.kubernetes.names(namespace, "serviceaccounts")
    return "" if "default" in there else "no service account yet"


def _install(stage: Stage) -> None:
    system = ("--namespace", "tidemark-system", "--create-namespace")
    stage.helm.run("install", "tidemark-base", str(BASE_CHART), *system)
    begun = time.monotonic()
    stage.values["brokerPods"]["replicas"] = BROKERS - 1
    stage.install("install")
    stage.all_ready()
    stage.progress.figure("install to all Ready", f"{time.monotonic() - begun:.0f} s")


def _placeholders(stage: Stage) -> None:
    stage.make_topic(TOPIC)
    stage.wait("two placeholders", lambda: stage.replicas(TOPIC, PARTITIONS))


def _quiet(stage: Stage) -> None:
    """Such as of a library that is missing in the image, and of a user without a name."""
    for name in stage.kubernetes.names(NAMESPACE, "pods"):
        log = stage.kubernetes.run("--namespace", NAMESPACE, "logs", name)
        for word in ("Traceback", "Warning: "):
            if word in log:
                raise Failed(f"{name}: {log[log.index(word) :][:2000]}")


def _inside(stage: Stage) -> None:
    stage.produce(TOPIC)
    stage.consume(TOPIC)


def _third(stage: Stage) -> None:
    begun = time.monotonic()
    stage.values["brokerPods"]["replicas"] = BROKERS
    stage.install()
    stage.recovered()
    stage.progress.figure("third broker to in sync", f"{time.monotonic() - begun:.0f} s")


def _beside(stage: Stage) -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all"})
    first = stage.written[TOPIC]
    for number in range(first, first + RECORDS):
        producer.produce(TOPIC, b"%08d" % number + bytes(1000))
        producer.poll(0)
    if producer.flush(CLIENT_TIMEOUT_S):
        raise Failed(f"not every record was acknowledged within {CLIENT_TIMEOUT_S} s")
    stage.written[TOPIC] += RECORDS
    found = _consumed(TOPIC, stage.written[TOPIC])
    if found != set(range(stage.written[TOPIC])):
        raise Failed(f"{len(found)} of {stage.written[TOPIC]} records were read")


def _consumed(topic: str, count: int) -> set[int]:
    options = {"bootstrap.servers": BOOTSTRAP, "group.id": "e2e", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
    found: set[int] = set()
    deadline_s = time.monotonic() + CLIENT_TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(500, 0.5):
            value = message.value()
            if message.error() is None and value is not None:
                found.add(int(value[:8]))
    consumer.close()
    return found


CHAPTER = Chapter(
    "install",
    "both charts, placeholders, a broker that joins, clients; always told first",
    (
        Step("an object store runs in a restricted namespace", _store),
        Step("both charts are installed, operator and two brokers are Ready", _install),
        Step("a topic with three replicas has placeholders on two brokers", _placeholders),
        Step("no program complains in its log", _quiet),
        Step("a client inside writes and reads", _inside),
        Step("a third broker joins and fills the placeholders", _third),
        Step("a client outside every pod writes and reads", _beside, beside_pods=True),
    ),
)
