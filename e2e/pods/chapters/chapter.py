"""A part of a run that can be told by itself."""

from collections.abc import Callable
from dataclasses import dataclass

from e2e.pods.stage import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """One sentence that holds once ``take`` has returned; it raises where it does not.

    ``beside_pods``: only where this process reaches pods, as one on the node does.
    """

    what: str
    take: Callable[[Stage], None]
    beside_pods: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    """``what``: in one line, for who chooses. ``on_request``: told only when it is named."""

    name: str
    what: str
    steps: tuple[Step, ...]
    on_request: bool = False

    def tell(self, stage: Stage) -> None:
        """Each step, judged. Raises at the first that fails."""
        for step in self.steps:
            if step.beside_pods and not stage.reaches_pods:
                stage.progress.say(f"left out, as pods are out of reach here: {step.what}")
                continue
            with stage.progress.check(f"{self.name}: {step.what}"):
                step.take(stage)
