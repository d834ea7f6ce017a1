"""Pods that are deleted and processes that are killed: everything comes back and catches up."""

import time

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.stage import Stage

TOPIC = "after"
KILLED = 128 + 9


def _pod_deleted(stage: Stage) -> None:
    begun = time.monotonic()
    stage.replace("broker-1-0")
    stage.recovered()
    stage.progress.figure("pod deleted to in sync", f"{time.monotonic() - begun:.0f} s")


def _killed(stage: Stage) -> None:
    begun = time.monotonic()
    before = stage.container("broker-2-0")["restartCount"]
    stage.kill("broker-2-0")

    # The restart count shows the restart, and the exit code that it was kill -9.
    def complaint() -> str:
        now = stage.container("broker-2-0")
        if now["restartCount"] == before:
            return "the container has not been started again"
        code = now.get("lastState", {}).get("terminated", {}).get("exitCode")
        return "" if code == KILLED else f"its first process ended with {code}, not by kill -9"

    stage.wait("another container", complaint)
    stage.recovered()
    stage.progress.figure("kill -9 to in sync", f"{time.monotonic() - begun:.0f} s")
    stage.consume_all()


def _failover(stage: Stage) -> None:
    before, pod = stage.leader(), stage.leading_pod()
    begun = time.monotonic()
    # It cannot give its Lease back.
    stage.kill(pod)
    # The Lease has to expire, so the takeover takes its duration.
    stage.wait(
        "another leader",
        lambda: "" if stage.leader() not in ("", before) else f"{stage.leader()!r} leads",
    )
    stage.make_topic(TOPIC)
    taken_s = time.monotonic() - begun
    stage.progress.figure("operator kill -9 to the next topic Ready", f"{taken_s:.0f} s")
    stage.produce(TOPIC)
    stage.consume(TOPIC)
    stage.recovered()


CHAPTER = Chapter(
    "faults",
    "a deleted pod, kill -9 of a broker and of the operator that leads",
    (
        Step("a deleted broker pod comes back and catches up", _pod_deleted),
        Step("a killed broker is started again and catches up", _killed),
        Step("another operator takes over from the one that led", _failover),
    ),
    takes_s=34,
)
