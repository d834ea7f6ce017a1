"""A part of a run that can run by itself."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from e2e.pods.stage import Stage
from e2e.pods.unsupported_machine import of_the_machine


@dataclass(frozen=True, slots=True)
class Step:
    """One sentence that holds once ``take`` has returned; it raises where it does not.

    ``beside_pods``: only where this process reaches pods, as one on the node does. ``ours`` False:
    nothing of this project takes part, so where it fails it is the machine that runs no pods.
    """

    what: str
    take: Callable[[Stage], None]
    beside_pods: bool = False
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a run.

    ``what``: description in one line, for the list of chapters. ``on_request``: run only when it is
    named. ``images``: images other than operator, broker, client and store.

    ``takes_s``: approximate duration while another side runs (:mod:`e2e.pods.sides`). ``again``:
    steps that lead to the same state where another side runs all steps; ``again_takes_s``: their
    duration.
    """

    name: str
    what: str
    steps: tuple[Step, ...]
    takes_s: int = 0
    on_request: bool = False
    images: tuple[str, ...] = ()
    again: tuple[Step, ...] = ()
    again_takes_s: int = 0

    def tell(self, stage: Stage, *, again: bool = False) -> None:
        """Each step, judged. Raises at the first that fails."""
        for step in self.again if again else self.steps:
            if step.beside_pods and not stage.reaches_pods:
                stage.progress.say(f"left out, as pods are out of reach here: {step.what}")
                continue
            whose = contextlib.nullcontext() if step.ours else of_the_machine()
            with stage.progress.check(f"{self.name}: {step.what}"), whose:
                step.take(stage)
