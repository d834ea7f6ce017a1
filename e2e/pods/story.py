"""The story of a run: the chapters that were chosen, on whichever cluster there is.

A chapter that fails ends the run: what was seen there is worth more than what would follow on a
broken installation.
"""

import time
from collections.abc import Sequence

from e2e.pods.chapters import chosen
from e2e.pods.stage import Stage


def tell(stage: Stage, names: Sequence[str], *, again: bool = False) -> None:
    """The chapters of these names, or all. Raises at the first step that fails. ``again``: another
    side of the run tells the first one in full."""
    with stage.progress.step("giving the images to the node"):
        stage.provider.load({name: image.archive for name, image in stage.images.items()})
    chapters = chosen(names)
    for chapter in chapters:
        begun = time.monotonic()
        chapter.tell(stage, again=again and chapter is chapters[0])
        stage.progress.say(f"{chapter.name} took {time.monotonic() - begun:.0f} s")
