"""An installation grows from two brokers to three, and its first records are written and read."""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.pods import objects, readme
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.client import BOOTSTRAP
from e2e.pods.objects import NAMESPACE, STORE
from e2e.pods.progress import Failed
from e2e.pods.stage import BROKERS, PARTITIONS, RECORDS, Stage

TOPIC = "orders"
CLIENT_TIMEOUT_S = 60
#: The variables that the README's commands name.
KEYS = {"KEY_ID": objects.KEYS["accessKeyId"], "KEY": objects.KEYS["secretAccessKey"]}


def _store(stage: Stage) -> None:
    stage.kubernetes.apply(objects.namespace(STORE))
    stage.account(STORE)
    stage.kubernetes.apply(*objects.store())
    stage.pod_ready(STORE, "minio")


def _install(stage: Stage) -> None:
    # Two brokers first: the third one fills placeholders later.
    stage.values["brokerPods"]["replicas"] = BROKERS - 1
    begun = time.monotonic()
    # The commands are those of the README, in its order.
    *first, test = readme.commands()
    reader = _reader(stage)
    _follow(stage, reader, first)
    said = reader.types(test)
    if "Phase:          Succeeded" not in said:
        raise Failed(f"{test} said\n{said}")
    stage.progress.figure("install to `helm test` passed", f"{time.monotonic() - begun:.0f} s")
    stage.all_ready()


def _reader(stage: Stage) -> readme.Reader:
    reader = readme.Reader(stage.helm.home / "reader", stage.helm, stage.kubernetes, KEYS)
    reader.writes(stage.values)
    return reader


def _follow(stage: Stage, reader: readme.Reader, commands: Sequence[str]) -> None:
    base, namespace, *others = commands
    reader.types(base)
    reader.types(namespace)
    # As in docs/get-started/install.md.
    labels = [f"{name}={value}" for name, value in objects.RESTRICTED.items()]
    stage.kubernetes.run("label", "namespace", NAMESPACE, *labels)
    for command in others:
        reader.types(command)


def _install_again(stage: Stage) -> None:
    *first, _ = readme.commands()
    _follow(stage, _reader(stage), first)
    stage.all_ready()
    stage.make_topic(TOPIC)


def _client(stage: Stage) -> None:
    stage.account(NAMESPACE)
    stage.kubernetes.apply(objects.client())
    stage.pod_ready(NAMESPACE, "client")


def _placeholders(stage: Stage) -> None:
    stage.make_topic(TOPIC)
    stage.wait("two placeholders", lambda: stage.replicas(TOPIC, PARTITIONS))


def _quiet(stage: Stage) -> None:
    """Such as of a library that is missing in the image, and of a user without a name."""
    for name in stage.kubernetes.names(NAMESPACE, "pods"):
        log = stage.kubernetes.log(NAMESPACE, name)
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
    # librdkafka on this machine reaches the brokers at their pods' addresses.
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
    "both charts, placeholders, a broker that joins, clients; always run first",
    (
        Step("an object store runs in a restricted namespace", _store, ours=False),
        Step("the README's six commands install both charts with two brokers", _install),
        Step("a topic with three replicas has placeholders on two brokers", _placeholders),
        Step("no program complains in its log", _quiet),
        Step("a client's pod is let in", _client),
        Step("a client inside writes and reads", _inside),
        Step("a third broker joins and fills the placeholders", _third),
        Step("a client outside every pod writes and reads", _beside, beside_pods=True),
    ),
    takes_s=60,
    again=(
        Step("an object store runs in a restricted namespace", _store, ours=False),
        Step("an installation with three brokers", _install_again),
        Step("a client's pod is let in", _client),
        Step("a client inside writes and reads", _inside),
    ),
    again_takes_s=50,
)
