"""An uninstalled release leaves what a person would miss, and the next one finds it again."""

from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.chapters.install import TOPIC
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import KEPT_KINDS, OPERATOR, Stage


def _uninstall(stage: Stage) -> None:
    # Data and identities have to survive the removal, and the brokers' pods with them.
    before = _kept(stage)
    stage.helm.run("uninstall", "tidemark", "--namespace", NAMESPACE)
    stage.wait("no pod of the operator", lambda: _operators(stage))
    after = _kept(stage)
    if after != before:
        raise Failed(f"uninstalling left {after} of {before}")
    stage.produce(TOPIC)
    stage.consume(TOPIC)


def _kept(stage: Stage) -> dict[str, str]:
    """Return the objects with user data, with their uids."""
    uids = stage.uids(*KEPT_KINDS, "pods")
    return {name: uid for name, uid in uids.items() if not name.startswith(f"Pod/{OPERATOR}")}


def _operators(stage: Stage) -> str:
    names = stage.kubernetes.names(NAMESPACE, "pods")
    return ", ".join(name for name in names if name.startswith(OPERATOR))


def _again(stage: Stage) -> None:
    stage.install("install")
    stage.recovered()
    stage.consume_all()


CHAPTER = Chapter(
    "removal",
    "uninstall, and another installation on what is left; run last",
    (
        Step("an uninstalled release leaves brokers that serve on", _uninstall),
        Step("the next release finds all records again", _again),
    ),
    takes_s=21,
)
