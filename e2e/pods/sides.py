"""Distribution of a run's chapters over nodes that run side by side.

A chapter mostly waits: for pods that restart one after the other, for Leases and sessions that
expire. A run of all chapters on one node leaves a core idle, so it uses two nodes, each with an
installation of its own. The distribution follows from the duration of each chapter
(:attr:`Chapter.takes_s`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.pods.chapters.chapter import Chapter

NAMES = ("A", "B")
#: What one node with an installation is given room for.
MEMORY_BYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class Side:
    """``chapters``: in their order, the one that installs first. ``again``: another side tells all
    of that one."""

    name: str
    chapters: tuple[Chapter, ...]
    again: bool

    @property
    def takes_s(self) -> int:
        """Sum of the chapters' durations."""
        first, *others = self.chapters
        return _first_s(first, self.again) + sum(chapter.takes_s for chapter in others)


def _first_s(first: Chapter, again: bool) -> int:
    return first.again_takes_s if again else first.takes_s


def how_many(names: Sequence[str], cores: int, available_bytes: int) -> int:
    """Return the number of sides for the chapters with the given names.

    Chapters that are named run one after the other on one node, as do all chapters on a machine too
    small for two.
    """
    fits = cores >= len(NAMES) and available_bytes >= len(NAMES) * MEMORY_BYTES
    return len(NAMES) if fits and not names else 1


def shared_out(chapters: Sequence[Chapter], sides: int) -> tuple[Side, ...]:
    """Every side begins with the first chapter. Of the others the longest comes first, and goes
    where least has gone; so no side takes longer than another by more than one chapter."""
    first, *others = chapters
    # The first chapter counts for every side. Where it runs again it is shorter.
    taken_s = [_first_s(first, bool(number)) for number in range(sides)]
    shares: list[list[Chapter]] = [[] for _ in range(sides)]
    for chapter in sorted(others, key=lambda other: other.takes_s, reverse=True):
        number = taken_s.index(min(taken_s))
        shares[number].append(chapter)
        taken_s[number] += chapter.takes_s
    return tuple(
        Side(NAMES[number], (first, *sorted(share, key=others.index)), again=bool(number))
        for number, share in enumerate(shares)
    )
