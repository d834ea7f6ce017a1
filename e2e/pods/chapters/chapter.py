"""A part of a run that can be told by itself."""

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
    """``what``: in one line, for who chooses. ``on_request``: told only when it is named.
    ``images``: what it needs beside operator, broker, client and store.

    ``takes_s``: about how long, beside another side of a run (:mod:`e2e.pods.sides`). ``again``:
    what leads to the same state where another side tells all steps; ``again_takes_s``: how long.
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
