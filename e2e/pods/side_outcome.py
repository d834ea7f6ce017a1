"""End of one side of a run: its outcome and, on failure, diagnostics."""

import contextlib
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from e2e.pods import unsupported_machine
from e2e.pods.commands import CommandFailed
from e2e.pods.images import ROOT
from e2e.pods.kubernetes import Kubernetes
from e2e.pods.outcome import FAILED, INTERRUPTED, Outcome
from e2e.pods.progress import Failed, Progress
from e2e.pods.providers import Provider
from e2e.pods.unsupported_machine import NotHere
from tests.helm import HelmRefused

KEPT = ROOT / "build" / "e2e"
QUESTIONS = {
    "objects.txt": ("get", "all,pvc,pv,nodes", "--all-namespaces", "--output", "wide"),
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    "pods.txt": ("describe", "pods", "--all-namespaces"),
    "tidemark.yaml": (
        *("get", "clusters.tidemark.dev,brokers.tidemark.dev,topics.tidemark.dev"),
        *("--all-namespaces", "--output", "yaml"),
    ),
}


def judged(
    tell: Callable[[], None],
    progress: Progress,
    provider: Provider,
    kubernetes: Kubernetes,
    kept: Path,
) -> Outcome:
    """Run ``tell``; what came of it. ``kept``: the folder for what explains a failure."""
    status, why = 0, ""
    # Each kind of end has its own status: interrupted, unsupported, failed.
    try:
        tell()
    except KeyboardInterrupt:
        progress.say("interrupted")
        status = INTERRUPTED
    except NotHere as error:
        _keep(provider, kubernetes, kept, progress)
        status, why = unsupported_machine.STATUS, str(error)
    except (Failed, CommandFailed, HelmRefused) as error:
        progress.say(str(error))
        status = FAILED
    except Exception:  # noqa: BLE001 whatever it is, what was seen is kept
        progress.say(traceback.format_exc())
        status = FAILED
    if status == FAILED:
        progress.failed = max(progress.failed, 1)
        _keep(provider, kubernetes, kept, progress)
    return Outcome(status, progress.passed, progress.failed, tuple(progress.figures), why)


def _keep(provider: Provider, kubernetes: Kubernetes, folder: Path, progress: Progress) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in provider.logs():
        shutil.copy(path, folder)
    # All that explains a failure, including logs of containers that were restarted.
    questions = dict(QUESTIONS)
    with contextlib.suppress(CommandFailed):
        pods = kubernetes.run("get", "pods", "--all-namespaces", "--no-headers", timeout_s=20)
        for line in pods.splitlines():
            namespace, pod = line.split()[:2]
            question = ("logs", "--namespace", namespace, pod)
            questions |= {f"{pod}.log": question, f"{pod}.previous.log": (*question, "--previous")}
    for name, question in questions.items():
        try:
            text = kubernetes.run(*question, timeout_s=20)
        except CommandFailed as error:
            text = str(error)
        (folder / name).write_text(text, encoding="utf-8")
    progress.say(f"logs and objects are in {folder}")
