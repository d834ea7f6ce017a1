"""The story of a run: the chapters that were chosen, on whichever cluster there is.

A chapter that fails ends the run: what was seen there is worth more than what would follow on a
broken installation.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from e2e.pods.chapters import chosen
from e2e.pods.chapters.chapter import Chapter
from e2e.pods.stage import Stage


def tell(stage: Stage, names: Sequence[str], *, again: bool = False) -> None:
    """Run the chapters with the given names, or all.

    Raises at the first step that fails. ``again``: another side of the run runs the first chapter
    in full.
    """
    chapters = chosen(names)
    first, *others = chapters
    later = _of_others(first, others) & set(stage.images)
    _give(stage, "the images", set(stage.images) - later)
    # Spark's takes longest, and is not needed for minutes.
    with ThreadPoolExecutor(max_workers=1) as pool:
        rest = pool.submit(_give, stage, "what later chapters need", later)
        for chapter in chapters:
            if chapter.images:
                rest.result()
            begun = time.monotonic()
            chapter.tell(stage, again=again and chapter is first)
            stage.progress.say(f"{chapter.name} took {time.monotonic() - begun:.0f} s")


def _of_others(first: Chapter, others: Sequence[Chapter]) -> set[str]:
    """Return the images that only these chapters name."""
    return {name for chapter in others for name in chapter.images} - set(first.images)


def _give(stage: Stage, what: str, names: Iterable[str]) -> None:
    archives = {name: stage.images[name].archive for name in sorted(names)}
    if archives:
        with stage.progress.step(f"giving the node {what}"):
            stage.provider.load(archives)
