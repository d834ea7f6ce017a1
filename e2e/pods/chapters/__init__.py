"""Chapters of the pod tests, which can be run one by one.

The first installs, the last uninstalls. Each chapter between them needs only what the first has
left: three brokers, all Ready, a client's pod and a store. It leaves the cluster in the same state,
so ``make e2e CHAPTERS="faults"`` runs the first chapter and that one. A chapter is a module here;
its steps depend on each other, and it stops at the first failure.
"""

from collections.abc import Sequence

from e2e.pods.chapters import (
    alerts,
    faults,
    hold,
    impostors,
    install,
    metrics,
    network,
    outside,
    removal,
    rights,
    scaling,
    spark,
    speed,
    switches,
    tier,
    upgrades,
)
from e2e.pods.chapters.chapter import Chapter
from e2e.pods.images import BROKER, OPERATOR, OWN
from e2e.pods.unsupported_machine import CannotRun

#: In the order in which they run.
CHAPTERS: tuple[Chapter, ...] = (
    install.CHAPTER,
    tier.CHAPTER,
    network.CHAPTER,
    impostors.CHAPTER,
    rights.CHAPTER,
    metrics.CHAPTER,
    switches.CHAPTER,
    spark.CHAPTER,
    faults.CHAPTER,
    upgrades.CHAPTER,
    outside.CHAPTER,
    alerts.CHAPTER,
    scaling.CHAPTER,
    speed.CHAPTER,
    hold.CHAPTER,
    removal.CHAPTER,
)


def chosen(names: Sequence[str]) -> tuple[Chapter, ...]:
    """Those of the names after the first; without any, all that need no request.

    Raises :class:`CannotRun`.
    """
    known = {chapter.name for chapter in CHAPTERS}
    if unknown := [name for name in names if name not in known]:
        told = "\n".join(f"  {chapter.name}: {chapter.what}" for chapter in CHAPTERS)
        raise CannotRun(f"no chapter {', '.join(unknown)}; there are\n{told}")
    return tuple(
        chapter
        for chapter in CHAPTERS
        if chapter is CHAPTERS[0] or chapter.name in names or (not names and not chapter.on_request)
    )


def own_images(names: Sequence[str]) -> tuple[str, ...]:
    """Return our own images that the chapters with the given names need."""
    more = dict.fromkeys(image for chapter in chosen(names) for image in chapter.images)
    return (OPERATOR, BROKER, *(image for image in more if image in OWN))
