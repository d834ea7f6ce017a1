"""A fourth broker comes and goes by one value of the chart, brokers are evicted as `kubectl drain`
does it, and one that never comes back is given up."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.commands import CommandFailed
from e2e.pods.kubernetes import condition
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import BROKERS, Stage
from tidemark.annotations import ACCEPT_COPY, ACCEPT_LOST_DIRECTORY

TOPIC, ALONE = "spread", "alone"
#: Partitions; enough for the fourth to have some, whatever its rack.
SPREAD = 6
FOURTH = BROKERS + 1
NAME = f"broker-{FOURTH}"
BROKER = f"brokers.tidemark.dev/{NAME}"
CLAIM = f"persistentvolumeclaim/data-{NAME}-0"
BUDGET = "poddisruptionbudget/tidemark-brokers"


# ------------------------------------------------------------ steps


def _comes(stage: Stage) -> None:
    _scale(stage, FOURTH)
    stage.all_ready()
    stage.make_topic(TOPIC, partitions=SPREAD)
    stage.wait("replicas on it", lambda: "" if _status(stage).get("replicas") else "it has none")
    stage.in_sync(TOPIC)
    stage.begin_load(TOPIC)


def _goes(stage: Stage) -> None:
    # The status is watched, as the drain may be over before a single look.
    with stage.watched(BROKER, ".status.drain") as seen:
        _scale(stage, BROKERS)
        stage.wait(f"no {NAME}", lambda: _there(stage))
    told = [json.loads(text) for text in seen if text]
    if not any(item["remaining"] for item in told):
        raise Failed(f"its status shows no progress: {told}")
    stage.wait("no pod of it", lambda: _kept(stage, "pods", f"{NAME}-0"))
    stage.wait("no StatefulSet of it", lambda: _kept(stage, "statefulsets", NAME))
    # The claim stays: its data may be needed by a broker of that id.
    stage.object(CLAIM)
    stage.recovered()


def _evicted(stage: Stage) -> None:
    for number in range(1, BROKERS + 1):
        # The budget allows the next eviction once all replicas are in sync again.
        stage.wait("a budget", lambda: _disruptions(stage, 1))
        _evict_only(stage, f"broker-{number}-0")
        stage.recovered()


def _evict_only(stage: Stage, pod: str) -> None:
    """From a node that takes no pods meanwhile, so that it is away for as long as that lasts."""
    uid = stage.pod(pod)["metadata"]["uid"]
    with _cordoned(stage):
        _evict(stage, pod)
        # While one broker is away, the budget refuses to evict any other.
        for other in {f"broker-{n}-0" for n in range(1, BROKERS + 1)} - {pod}:
            _refused(stage, other)
        stage.wait(f"no {pod}", lambda: _same(stage, pod, uid))


def _load_ends(stage: Stage) -> None:
    outcome = stage.end_load()
    stage.progress.figure("records through evictions", outcome.acknowledged)
    stage.progress.figure("longest wait meanwhile", f"{outcome.longest_s:.1f} s")
    stage.consume_all()


def _dead(stage: Stage) -> None:
    """Its disk has the only copy of a topic."""
    _scale(stage, FOURTH)
    stage.all_ready()
    stage.make_topic(ALONE, partitions=1, replicationFactor=1)
    stage.produce(ALONE)
    with _cordoned(stage):
        # The claim goes first, so that the pod comes back without the data, if at all.
        stage.delete(CLAIM, wait=False)
        stage.delete(f"pod/{NAME}-0", wait=False)
        stage.wait(f"{NAME} to be fenced", lambda: _not(stage, "Ready", "Fenced", "ShutDown"))
        _scale(stage, BROKERS)
        stage.wait("no way to drain it", lambda: _not(stage, "Draining", "ReplicasCannotMove"))
        # Deleting the Broker makes the operator offer a way to accept the loss.
        stage.delete(BROKER, wait=False)
        stage.wait("the offer", lambda: _not(stage, "Draining", "ReplicasInUse"))
        # The person copies the value from the message, as the documentation says.
        message = condition(stage.object(BROKER), "Draining")["message"]
        stage.annotate(BROKER, ACCEPT_LOST_DIRECTORY, _offered(message, ACCEPT_LOST_DIRECTORY))
        stage.wait(f"no {NAME}", lambda: _there(stage))
    stage.wait("no pod of it", lambda: _kept(stage, "pods", f"{NAME}-0"))


def _begins_anew(stage: Stage) -> None:
    """Check that the topic is served again without the records that only the lost broker had."""

    def complaint() -> str:
        ready = condition(stage.topic(ALONE), "Ready")
        return "" if ready.get("reason") == "LastCopyMissing" else str(ready)

    stage.wait("the offer", complaint)
    message = condition(stage.topic(ALONE), "Ready")["message"]
    name = f"topics.tidemark.dev/{ALONE}"
    stage.annotate(name, ACCEPT_COPY, _offered(message, ACCEPT_COPY))
    stage.ready(name)
    if (found := stage.client.ends(ALONE)) != {"0": 0}:
        raise Failed(f"it begins at {found}")
    stage.written[ALONE] = 0
    stage.produce(ALONE)
    stage.consume(ALONE)
    stage.delete(name)
    del stage.written[ALONE]
    with contextlib.suppress(CommandFailed):  # it may have gone with its broker
        stage.delete(CLAIM)
    stage.recovered()


# ------------------------------------------------------------ what they do and ask


def _scale(stage: Stage, brokers: int) -> None:
    stage.values["brokerPods"]["replicas"] = brokers
    stage.install(wait=False)


def _status(stage: Stage) -> dict[str, Any]:
    found = stage.object(BROKER)["status"]
    assert isinstance(found, dict)
    return found


def _there(stage: Stage) -> str:
    if NAME not in stage.kubernetes.names(NAMESPACE, "brokers.tidemark.dev"):
        return ""
    return str(condition(stage.object(BROKER), "Draining"))


def _kept(stage: Stage, kind: str, name: str) -> str:
    return "it is there" if name in stage.kubernetes.names(NAMESPACE, kind) else ""


def _not(stage: Stage, kind: str, *reasons: str) -> str:
    found = condition(stage.object(BROKER), kind)
    return "" if found.get("reason") in reasons else str(found)


def _offered(message: str, annotation: str) -> str:
    """The value at the end of a message, as docs/reference/annotations.md has it."""
    _, found, value = message.rpartition(f"{annotation}: ")
    if not found:
        raise Failed(f"no value of {annotation} is offered: {message}")
    return value


def _disruptions(stage: Stage, wanted: int) -> str:
    found = stage.object(BUDGET)["status"]
    return "" if found.get("disruptionsAllowed") == wanted else str(found)


def _evict(stage: Stage, pod: str) -> None:
    """As `kubectl drain` does. Raises CommandFailed where a disruption budget refuses it."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    stage.kubernetes.run("create", "--raw", path, "--filename", "-", stdin=json.dumps(body))


def _refused(stage: Stage, pod: str) -> None:
    try:
        _evict(stage, pod)
    except CommandFailed as error:
        if "disruption budget" in str(error):
            return
        raise
    raise Failed(f"{pod} was evicted while another broker was away")


def _same(stage: Stage, pod: str, uid: str) -> str:
    return "the evicted one is there" if stage.pod(pod)["metadata"]["uid"] == uid else ""


@contextlib.contextmanager
def _cordoned(stage: Stage) -> Iterator[None]:
    (node,) = stage.kubernetes.names("", "nodes")
    stage.kubernetes.run("cordon", node)
    try:
        yield
    finally:
        stage.kubernetes.run("uncordon", node)


CHAPTER = Chapter(
    "scaling",
    "a fourth broker comes and goes, evictions, a broker that is given up",
    (
        Step("a fourth broker comes, and has part in new topics", _comes),
        Step("it is drained, then goes, and its claim stays", _goes),
        Step("each broker is evicted, and no second one meanwhile", _evicted),
        Step("no send has failed, and every record is there once", _load_ends),
        Step("a dead broker with the only copy goes once that is accepted", _dead),
        Step("its topic restarts empty where loss is accepted", _begins_anew),
    ),
    takes_s=99,
)
