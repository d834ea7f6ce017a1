"""Faults of brokers: an absent broker and its consequences, and a blocked main loop."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.alerts.fault import Fault
from e2e.pods.chapters.alerts.runbooks import NAMES
from e2e.pods.chapters.install import TOPIC
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import Stage

SINGLE, STRICT, WIDE, TAKEN = (
    f"alerts-{name}" for name in ("single", "strict", "wide", "name-taken")
)
STUCK, LATE = NAMES["tmrd"], "late"
AWAY, DRAINED, STANDING = "broker-3", "broker-2", "broker-1"
STANDS_STILL_S = 14
#: Only the first thread of a process is stopped, by what debuggers use; the thread that answers
#: Prometheus continues. Numbers of ptrace(2): PTRACE_SEIZE, PTRACE_INTERRUPT, __WALL,
#: PTRACE_DETACH.
STAND_STILL = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def is_broker(process):
    with open(f"/proc/{process}/cmdline", "rb") as words:
        return b"tidemark_broker" in words.read()
(broker,) = (int(each) for each in os.listdir("/proc") if each.isdigit() and is_broker(each))
def trace(what):
    if libc.ptrace(what, broker, None, None):
        sys.exit(f"ptrace {what:#x}: {os.strerror(ctypes.get_errno())}")
trace(0x4206)
trace(0x4207)
os.waitpid(broker, 0x40000000)
time.sleep(float(sys.argv[1]))
trace(17)
"""


@contextmanager
def _away(stage: Stage) -> Iterator[None]:
    """No node takes its pod. Topics need it, one broker cannot be drained without it, a changed
    pod of another waits for it, and so do RecordDeletions."""
    run = stage.kubernetes.run
    (node,) = stage.kubernetes.names("", "nodes")
    # A replica of one topic on each broker, and a topic that needs all brokers for its minimum.
    stage.make_topic(SINGLE, partitions=stage.brokers, replicationFactor=1)
    stage.make_topic(STRICT, config={"min.insync.replicas": str(stage.brokers)})
    stage.produce(SINGLE, 100)
    for name in (SINGLE, STRICT):  # no chapter after this one finds them
        del stage.written[name]
    # The pod stays Pending until the node takes pods again.
    run("cordon", node)
    run("--namespace", NAMESPACE, "delete", "pod", f"{AWAY}-0", "--wait=false")
    try:
        # Objects that cannot proceed while the broker is away: one has too many replicas, one a
        # taken name, and two deletions.
        stage.kubernetes.apply(
            objects.topic(WIDE, partitions=1, replicationFactor=stage.brokers + 1),
            objects.topic(TAKEN, topicName=TOPIC, partitions=1, replicationFactor=1),
            _deletion(STUCK),
            _deletion(LATE, timeout="3s"),
        )
        stage.wait(f"{AWAY} to be fenced", lambda: _is_live(stage))
        # Only once the broker is fenced, as a drain before that would have a place to go.
        _drain(stage, True)
        _change_pods(stage, {"e2e.tidemark.dev/alerts": "once"})
        yield
        _change_pods(stage, None)
        _drain(stage, None)
    finally:
        run("uncordon", node)
    stage.recovered()
    _remove(stage, "topics.tidemark.dev", SINGLE, STRICT, WIDE, TAKEN)
    _remove(stage, "recorddeletions.tidemark.dev", STUCK, LATE)


def _is_live(stage: Stage) -> str:
    found = stage.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")["status"]
    return "" if found["brokers"]["fenced"] else str(found["brokers"])


def _deletion(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "RecordDeletion",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"topicRef": {"name": SINGLE}, "all": {"beforeOffset": -1}, **spec},
    }


def _drain(stage: Stage, drain: bool | None) -> None:
    _patch(stage, "brokers.tidemark.dev", DRAINED, {"drain": drain})


def _change_pods(stage: Stage, annotations: dict[str, str] | None) -> None:
    template = {"podAnnotations": annotations}
    _patch(stage, "clusters.tidemark.dev", "tidemark", {"brokers": {"template": template}})


def _patch(stage: Stage, kind: str, name: str, spec: dict[str, Any]) -> None:
    stage.kubernetes.run(
        *("--namespace", NAMESPACE, "patch", kind, name, "--type=merge"),
        *("--patch", json.dumps({"spec": spec})),
    )


def _remove(stage: Stage, kind: str, *names: str) -> None:
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", kind, *names)


@contextmanager
def _stands_still(stage: Stage) -> Iterator[None]:
    """A debugger holds the main loop for a while."""
    failed: list[Exception] = []

    def hold() -> None:
        exec_ = ("exec", "--stdin", f"{STANDING}-0", "--", "python3", "-", str(STANDS_STILL_S))
        try:
            stage.kubernetes.run("--namespace", NAMESPACE, *exec_, stdin=STAND_STILL)
        except Exception as error:  # noqa: BLE001 the waiting thread reports it
            failed.append(error)

    # The caller observes the alert while the debugger holds the process.
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]
    stage.recovered()


FAULTS = (
    Fault(
        what="a broker that is away",
        alerts=(
            "TidemarkBrokerFenced",
            "TidemarkPartitionsOffline",
            "TidemarkPartitionsUnderMinIsr",
            "TidemarkPartitionsUnderReplicated",
            "TidemarkPlaceholders",
            "TidemarkObjectNotReady",
            "TidemarkObjectStalled",
            "TidemarkDrainStuck",
            "TidemarkPodNotUpToDate",
            "TidemarkRecordDeletionStuck",
            "TidemarkRecordDeletionFailed",
        ),
        caused=_away,
    ),
    Fault(
        what="a main loop that is blocked",
        alerts=("TidemarkBrokerStalled",),
        caused=_stands_still,
    ),
)
