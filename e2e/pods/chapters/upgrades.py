"""What a release changes reaches the brokers one after the other."""

import time
from typing import Any

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.kubernetes import not_ready
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import Stage

CHANGED = {"e2e.tidemark.dev/changed": "once"}


def _changed(stage: Stage) -> None:
    begun = time.monotonic()
    stage.values["brokerPods"]["podAnnotations"] = CHANGED
    stage.install()
    away: list[int] = []

    def complaint() -> str:
        pods = stage.kubernetes.get(NAMESPACE, "pods")["items"]
        ready = [pod for pod in pods if _is_broker(pod) and not not_ready(pod)]
        away.append(stage.brokers - len(ready))
        changed = sum(CHANGED.items() <= _annotations(pod).items() for pod in ready)
        return "" if changed == stage.brokers else f"{changed} are changed and Ready"

    stage.wait("changed pods", complaint)
    if max(away) > 1:
        raise Failed(f"{max(away)} brokers were away at once")
    stage.recovered()
    stage.progress.figure("three restarts", f"{time.monotonic() - begun:.0f} s")


def _is_broker(body: dict[str, Any]) -> bool:
    return str(body["metadata"]["name"]).startswith("broker-")


def _annotations(body: dict[str, Any]) -> dict[str, str]:
    found = body["metadata"].get("annotations", {})
    assert isinstance(found, dict)
    return found


CHAPTER = Chapter(
    "upgrades",
    "a changed value restarts one broker after the other",
    (Step("a change restarts one broker after the other", _changed),),
)
