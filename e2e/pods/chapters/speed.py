"""Durations that users wait for, next to their targets.

Nothing is judged: a machine with other load is slower. Kubernetes reports some times in whole
seconds (a container's start, a condition), rounded down. A duration may therefore be up to a second
too long, and is never too short.
"""

import datetime as dt
import functools
import time
from collections.abc import Callable, Sequence

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.kubernetes import condition
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import BROKERS, PARTITIONS, Stage

UNFENCED_S = 5
FILLED_S = 10
FAILOVER_S = 15
FAILOVERS = 2
UNFENCED = "unfenced by the controller"
WIDE = "wide"
_NANOSECONDS = slice(0, 26)


def _tell(stage: Stage, what: str, taken_s: Sequence[float], target_s: int) -> None:
    told = ", ".join(f"{item:.1f}" for item in taken_s)
    missed = " MISSED" if max(taken_s) > target_s else ""
    stage.progress.figure(what, f"{told} s (target {target_s} s{missed})")


def _moment(text: str) -> float:
    """Parse an RFC 3339 time with up to nine digits of a second, in UTC."""
    return dt.datetime.fromisoformat(f"{text.removesuffix('Z')[_NANOSECONDS]}+00:00").timestamp()


def _start(stage: Stage, number: int) -> float:
    """Seconds from the start of a broker's container until it hears that the operator counts on
    it."""
    pod = f"broker-{number}-0"
    stage.wait(f"{UNFENCED!r} in the log of {pod}", lambda: "" if _heard(stage, pod) else "not yet")
    started = str(stage.container(pod)["state"]["running"]["startedAt"])
    return _moment(_heard(stage, pod)) - _moment(started)


def _heard(stage: Stage, pod: str) -> str:
    """When; "" for not yet."""
    log = stage.kubernetes.run("--namespace", NAMESPACE, "logs", "--timestamps", pod)
    lines = (line for line in log.splitlines() if UNFENCED in line)
    return next(lines, "").partition(" ")[0]


def _starts(stage: Stage) -> None:
    taken_s = []
    for number in range(1, BROKERS + 1):
        pod = f"broker-{number}-0"
        before = int(stage.container(pod)["restartCount"])
        # The kubelet restarts the container at once, so its own start counts.
        stage.kill(pod)
        stage.restarted(pod, before)
        stage.recovered()
        taken_s.append(_start(stage, number))
    _tell(stage, "a killed broker's next container unfenced after", taken_s, UNFENCED_S)


def _placeholders(stage: Stage) -> None:
    topic = objects.topic(WIDE, partitions=PARTITIONS, replicationFactor=BROKERS + 1)
    stage.kubernetes.apply(topic)
    stage.ready(f"topics.tidemark.dev/{WIDE}")
    stage.values["brokerPods"]["replicas"] = BROKERS + 1
    stage.install()
    stage.wait("all replicas", lambda: _not_full(stage))
    # Both times are from the API, so the waiting of this program is not included.
    full = condition(stage.topic(WIDE), "FullyReplicated")["lastTransitionTime"]
    ready = condition(stage.pod(f"broker-{BROKERS + 1}-0"), "Ready")["lastTransitionTime"]
    _tell(stage, "a new broker unfenced after", [_start(stage, BROKERS + 1)], UNFENCED_S)
    filled_s = max(0.0, _moment(full) - _moment(ready))
    _tell(stage, "placeholders filled and in sync after its pod is Ready", [filled_s], FILLED_S)
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", f"topics.tidemark.dev/{WIDE}")
    stage.values["brokerPods"]["replicas"] = BROKERS
    stage.install()
    stage.recovered()


def _not_full(stage: Stage) -> str:
    found = condition(stage.topic(WIDE), "FullyReplicated")
    return "" if found.get("status") == "True" else found.get("message", "no condition")


def _failovers(stage: Stage, name: str, what: str) -> None:
    taken_s = []
    for number in range(FAILOVERS):
        pod, topic = stage.leading_pod(), f"after-{name.lower()}-{number}"
        restarts = int(stage.container(pod)["restartCount"])
        begun = time.monotonic()
        # From the signal to a topic that is Ready under another operator.
        stage.signal(pod, name)
        stage.make_topic(topic)
        taken_s.append(time.monotonic() - begun)
        _revive(stage, pod, name, restarts)
    _tell(stage, f"{what} of the operator that leads to the next topic Ready", taken_s, FAILOVER_S)


def _revive(stage: Stage, pod: str, name: str, restarts: int) -> None:
    if name == "SIGSTOP":
        stage.signal(pod, "SIGCONT")
    else:
        stage.restarted(pod, restarts)
    stage.recovered()


def _both_silent(stage: Stage) -> None:
    """Silence a broker without closing its connections, while no operator leads."""
    operator, broker = stage.leading_pod(), f"broker-{BROKERS}-0"
    begun = time.monotonic()
    # The operator first, so that no leader notices the broker's silence.
    for pod in (operator, broker):
        stage.signal(pod, "SIGSTOP")
    stage.wait("the broker fenced", lambda: _not_fenced(stage))
    taken_s = time.monotonic() - begun
    for pod in (operator, broker):
        stage.signal(pod, "SIGCONT")
    stage.recovered()
    what = "SIGSTOP of that operator and of a broker to its partitions led by others"
    _tell(stage, what, [taken_s], FAILOVER_S)


def _not_fenced(stage: Stage) -> str:
    body = stage.kubernetes.get(NAMESPACE, "brokers.tidemark.dev", f"broker-{BROKERS}")
    reason = condition(body, "Ready").get("reason", "")
    return "" if reason == "Fenced" else f"Ready has the reason {reason!r}"


def _after(name: str, what: str) -> Callable[[Stage], None]:
    return functools.partial(_failovers, name=name, what=what)


CHAPTER = Chapter(
    "speed",
    "how soon brokers serve, placeholders are filled and another operator leads; only when named",
    (
        Step("killed brokers are unfenced again", _starts),
        Step("a new broker fills placeholders, and goes again", _placeholders),
        Step("operators that are killed are followed by others", _after("SIGKILL", "kill -9")),
        Step("operators that hang are followed by others", _after("SIGSTOP", "SIGSTOP")),
        Step("a broker that hangs at the same time is fenced", _both_silent),
    ),
    on_request=True,
)
