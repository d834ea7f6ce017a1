"""CI's verdict on a run in pods: an unsuitable machine is distinguished from a failing product."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.pods import quick, unsupported_machine
from e2e.pods.chapters import chosen
from e2e.pods.commands import CommandFailed
from e2e.pods.progress import Failed, Progress
from e2e.pods.side_outcome import judged
from e2e.pods.unsupported_machine import NotHere, of_the_machine


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(0, 0), (1, 1), (2, 2), (130, 130), (unsupported_machine.STATUS, 0)],
    ids=["passed", "failed", "not built", "out of time", "not possible here"],
)
def test_unsuitable_machine_is_no_failure(status: int, verdict: int) -> None:
    assert quick.verdict(status) == verdict


def test_why_it_is_not_possible_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    refused = CommandFailed("unshare: status 1\nunshare failed:\n  Operation not permitted\n")
    with pytest.raises(NotHere) as raised, of_the_machine():
        raise refused
    assert unsupported_machine.tell(raised.value) == unsupported_machine.STATUS
    (line,) = capsys.readouterr().out.splitlines()
    assert "NOT POSSIBLE HERE" in line
    assert line.endswith("unshare: status 1 / unshare failed: / Operation not permitted")


class Nowhere:
    """A provider without a cluster."""

    kubeconfig = Path("/nowhere")

    def load(self, archives: object) -> None: ...

    def kill(self, container_id: str) -> None: ...

    def logs(self) -> list[Path]:
        return []

    def way_in(self) -> str:
        return ""


class Silent:
    """Cluster whose commands all fail without an answer."""

    def run(self, *arguments: str, timeout_s: float) -> str:
        raise CommandFailed("no answer")


def a_pod_fails() -> None:
    raise Failed("pod minio: not within 240 s")


def of_minio() -> None:
    with of_the_machine():
        a_pod_fails()


@pytest.mark.parametrize(
    ("tell", "status"),
    [(a_pod_fails, 1), (of_minio, unsupported_machine.STATUS), (lambda: None, 0)],
    ids=["ours", "nothing of ours", "none"],
)
def test_a_side_ends_according_to_the_failing_part(
    tell: Callable[[], None], status: int, tmp_path: Path
) -> None:
    progress = Progress()

    def checked() -> None:
        with progress.check("a step"):
            tell()

    found = judged(checked, progress, Nowhere(), Silent(), tmp_path / "kept")  # type: ignore[arg-type]
    assert found.status == status
    assert (found.passed, found.failed) == ((1, 0) if status == 0 else (0, 1))


def test_failure_outside_a_step_counts(tmp_path: Path) -> None:
    """An example are images that the node does not accept."""
    found = judged(a_pod_fails, Progress(), Nowhere(), Silent(), tmp_path / "kept")  # type: ignore[arg-type]
    assert (found.status, found.failed) == (1, 1)
    assert (tmp_path / "kept" / "events.txt").exists()


def test_quick_run_has_installation_and_tier() -> None:
    """The first step concerns the machine alone."""
    install, tier = chosen(quick.CHAPTERS)
    assert (install.name, tier.name) == quick.CHAPTERS
    assert [step.ours for step in install.steps][:2] == [False, True]
