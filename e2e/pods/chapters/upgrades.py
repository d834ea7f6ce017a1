"""A release reaches operators and brokers one after the other, and a rollback reverts it, while
records are written and read.

A second tag of the same images represents a new version, because only the rollout is under test.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.pods import images
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.chapters.install import TOPIC as EARLIER
from e2e.pods.kubernetes import condition, not_ready
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import KEPT_KINDS, OPERATOR, OPERATORS, Stage
from tests.helm import BASE_CHART

TOPIC = "flowing"
GROUP = "before-upgrades"
CHANGED = {"e2e.tidemark.dev/changed": "once"}
NEXT = "next"
DEFINITION = Path("files", "crds", "tidemark.dev_topics.yaml")
FIELD = "remark"

Pod = dict[str, Any]


# ------------------------------------------------------------ steps


def _begin(stage: Stage) -> None:
    stage.make_topic(TOPIC)
    stage.client.commit(EARLIER, GROUP)
    stage.begin_load(TOPIC)


def _changed(stage: Stage) -> None:
    stage.values["brokerPods"]["podAnnotations"] = CHANGED
    # A changed annotation restarts all brokers, one after the other.
    with _kept(stage), _timed(stage, "three restarts"):
        stage.install(wait=False)
        _roll(stage, {"broker-": stage.brokers}, _is_changed)
        stage.recovered()


def _definition(stage: Stage) -> None:
    """The field stays in an object of which the operator does not know what it means, as after a
    definition that came before its operator, or an operator that was rolled back."""
    with _kept(stage), tempfile.TemporaryDirectory() as folder:
        # A definition with one more field, as the next version may have.
        newer = shutil.copytree(BASE_CHART, Path(folder, "newer"))
        body = yaml.safe_load((newer / DEFINITION).read_text("utf-8"))
        for version in body["spec"]["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            spec["properties"][FIELD] = {"type": "string"}
        (newer / DEFINITION).write_text(yaml.safe_dump(body), "utf-8")
        _upgrade_base(stage, newer)
        stage.wait("the new field", lambda: _with_field(stage))
    stage.recovered()


def _definition_back(stage: Stage) -> None:
    """Restore the older definition, after removing the fields that it does not know."""
    with _kept(stage):
        _patch(stage, None)
        _upgrade_base(stage, BASE_CHART)
        stage.wait("a topic that is understood", lambda: "" if _not_told(stage) else "it is not")


def _not_told(stage: Stage) -> str:
    stalled = condition(stage.topic(TOPIC), "Stalled")
    return "" if stalled.get("reason") == "ObjectUnreadable" else str(stalled)


def _upgrade_base(stage: Stage, chart: Path) -> None:
    stage.helm.run("upgrade", "tidemark-base", str(chart), "--namespace", "tidemark-system")


def _with_field(stage: Stage) -> str:
    """The API server takes a moment to serve a definition; until then it drops the field."""
    _patch(stage, "kept")
    return "" if stage.topic(TOPIC)["spec"].get(FIELD) == "kept" else "it is not stored"


def _patch(stage: Stage, value: str | None) -> None:
    stage.patch(f"topics.tidemark.dev/{TOPIC}", {"spec": {FIELD: value}})


def _images(stage: Stage) -> None:
    for part in (stage.values, stage.values["brokerPods"]):
        image = part["image"]
        stage.provider.tag(f"{image['repository']}:{image['tag']}", f"{image['repository']}:{NEXT}")
        part["image"] = {**image, "tag": NEXT}
    with _kept(stage), _timed(stage, "new images"):
        stage.install(wait=False)
        _roll(stage, _everybody(stage), lambda pod: _tag(pod) == NEXT)
        stage.recovered()
        # Watches that were open before the definition changed receive no event for it.
        stage.wait("word of the field", lambda: _not_told(stage))


def _rollback(stage: Stage) -> None:
    # Two revisions back: before the new images and before the changed annotation.
    first = stage.revision() - 2
    stage.values["image"]["tag"] = stage.values["brokerPods"]["image"]["tag"] = images.TAG
    del stage.values["brokerPods"]["podAnnotations"]
    with _kept(stage), _timed(stage, "rollback"):
        stage.helm.run("rollback", "tidemark", str(first), "--namespace", NAMESPACE)
        _roll(
            stage,
            _everybody(stage),
            lambda pod: _tag(pod) == images.TAG and not _is_changed(pod),
        )
        stage.recovered()


def _end(stage: Stage) -> None:
    outcome = stage.end_load()
    stage.progress.figure("records through upgrades", outcome.acknowledged)
    stage.progress.figure("longest wait for acks=all", f"{outcome.longest_s:.1f} s")
    stage.consume_all()
    # The group committed before the first upgrade.
    committed, end = stage.client.committed(EARLIER, GROUP), stage.client.ends(EARLIER)
    if committed != end:
        raise Failed(f"group {GROUP} had committed {end}, and has {committed}")


# ------------------------------------------------------------ one pod at a time


def _roll(stage: Stage, wanted: Mapping[str, int], is_new: Callable[[Pod], bool]) -> None:
    """Wait until the given number of pods with this prefix are new and Ready.

    At no time may two pods of one kind be unavailable.
    """

    def complaint() -> str:
        pods = stage.kubernetes.all(NAMESPACE, "pods")
        old = []
        # Operators and brokers roll at the same time, each one pod at a time.
        for prefix, number in wanted.items():
            ready = [pod for pod in _named(pods, prefix) if not not_ready(pod)]
            if number - len(ready) > 1:
                raise Failed(f"{number - len(ready)} of {prefix}… were away at once")
            new = sum(is_new(pod) for pod in ready)
            if new < number:
                old.append(f"{new} of {number} {prefix}… are new and Ready")
        return "; ".join(old)

    stage.wait("new pods", complaint)


def _everybody(stage: Stage) -> dict[str, int]:
    return {"broker-": stage.brokers, f"{OPERATOR}-": OPERATORS}


def _named(pods: list[Pod], prefix: str) -> list[Pod]:
    return [pod for pod in pods if str(pod["metadata"]["name"]).startswith(prefix)]


def _tag(pod: Pod) -> str:
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]


def _is_changed(pod: Pod) -> bool:
    return bool(CHANGED.items() <= pod["metadata"].get("annotations", {}).items())


# ------------------------------------------------------------ what stays


@contextlib.contextmanager
def _kept(stage: Stage) -> Iterator[None]:
    """Every object that a person would miss is the same one afterwards."""
    before = stage.uids(*KEPT_KINDS)
    yield
    after = stage.uids(*KEPT_KINDS)
    if not before.items() <= after.items():
        raise Failed(f"of {before} there are {after}")


@contextlib.contextmanager
def _timed(stage: Stage, what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    stage.progress.figure(what, f"{time.monotonic() - begun:.0f} s")


CHAPTER = Chapter(
    "upgrades",
    "a changed value, definition and image under load, and a rollback",
    (
        Step("records begin to flow", _begin),
        Step("a change restarts one broker after the other", _changed),
        Step("a definition with one more field keeps every object", _definition),
        Step("new images replace operators and brokers one at a time", _images),
        Step("a rollback takes image and change back", _rollback),
        Step("the definition goes back, too", _definition_back),
        Step("no send has failed, every record is there once, offsets are kept", _end),
    ),
    takes_s=124,
)
