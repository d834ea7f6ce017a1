"""Chapters of `make e2e` on each side of a run, and the combined result."""

from dataclasses import replace
from pathlib import Path

import pytest

from e2e.pods.chapters import CHAPTERS, chosen
from e2e.pods.outcome import Outcome, ended
from e2e.pods.progress import Progress
from e2e.pods.sides import MEMORY_BYTES, how_many, shared_out
from e2e.pods.unsupported_machine import STATUS, CannotRun, NotHere

ROOM = 2 * MEMORY_BYTES
PASSED = Outcome(0, passed=5, figures=("a thing 1 s",))


@pytest.mark.parametrize(
    ("names", "cores", "available_bytes", "sides"),
    [
        ((), 2, ROOM, 2),
        ((), 64, 10 * ROOM, 2),
        (("faults", "hold"), 64, 10 * ROOM, 1),
        ((), 1, ROOM, 1),
        ((), 2, ROOM - 1, 1),
    ],
    ids=["all", "a large machine", "some, by name", "one core", "little memory"],
)
def test_all_chapters_run_on_two_sides_where_the_machine_has_room(
    names: tuple[str, ...], cores: int, available_bytes: int, sides: int
) -> None:
    assert how_many(names, cores, available_bytes) == sides


def test_every_chapter_runs_once_and_each_side_installs_first() -> None:
    sides = shared_out(chosen(()), 2)
    assert [side.chapters[0] for side in sides] == [CHAPTERS[0]] * 2
    assert [side.again for side in sides] == [False, True]
    later = [chapter for side in sides for chapter in side.chapters[1:]]
    assert sorted(chapter.name for chapter in later) == sorted(
        chapter.name for chapter in chosen(())[1:]
    )
    # Within a side, chapters keep the order of the table.
    for side in sides:
        assert [*side.chapters] == [chapter for chapter in CHAPTERS if chapter in side.chapters]


def test_both_sides_take_about_as_long() -> None:
    one, other = shared_out(chosen(()), 2)
    assert abs(one.takes_s - other.takes_s) <= 0.1 * max(one.takes_s, other.takes_s)
    assert all(chapter.takes_s for chapter in chosen(()))


def test_chapter_as_long_as_all_others_has_its_own_side() -> None:
    first, *others = chosen(())
    first = replace(first, takes_s=10, again_takes_s=10)
    chapters = [replace(item, takes_s=10) for item in others]
    # The chapter takes as long as all others together.
    chapters[3] = replace(chapters[3], takes_s=10 * (len(others) - 1))
    one, other = shared_out([first, *chapters], 2)
    assert {chapters[3]} in ({*one.chapters[1:]}, {*other.chapters[1:]})


def test_a_single_side_runs_everything() -> None:
    (side,) = shared_out(chosen(("faults",)), 1)
    assert [chapter.name for chapter in side.chapters] == ["install", "faults"]
    assert not side.again


def test_repeated_installation_takes_less() -> None:
    assert 0 < CHAPTERS[0].again_takes_s < CHAPTERS[0].takes_s
    assert all(not chapter.again for chapter in CHAPTERS[1:])


# ------------------------------------------------------------ results


def test_figures_and_counts_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    other = Outcome(0, passed=2, figures=("another 2 s",))
    assert ended(Progress(figures=["an image 3 MB"]), {"A": PASSED, "B": other}) == 0
    figures, counts = capsys.readouterr().out.splitlines()
    assert figures.startswith("an image 3 MB, a thing 1 s, another 2 s, took ")
    assert counts == "7 passed, 0 failed"


@pytest.mark.parametrize(
    ("other", "status"),
    [
        (PASSED, 0),
        (Outcome(1, failed=1), 1),
        (Outcome(130), 130),
        (Outcome(-9, failed=1), 1),
    ],
    ids=["passed", "failed", "interrupted", "killed"],
)
def test_a_run_ends_as_its_worse_side(other: Outcome, status: int) -> None:
    assert ended(Progress(), {"A": PASSED, "B": other}) == status
    assert ended(Progress(), {"A": other, "B": PASSED}) == status


def test_a_machine_without_a_side_cannot_run_and_a_missing_side_is_named() -> None:
    refused = Outcome(STATUS, failed=1, not_here="no namespaces")
    with pytest.raises(NotHere, match=r"^no namespaces$"):
        ended(Progress(), {"A": refused, "B": refused})
    with pytest.raises(CannotRun, match=r"side B .* no namespaces") as partly:
        ended(Progress(), {"A": PASSED, "B": refused})
    assert not isinstance(partly.value, NotHere)
    assert ended(Progress(), {"A": Outcome(1, failed=1), "B": refused}) == 1


def test_a_side_that_leaves_no_outcome_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    assert Outcome.read(path, -9) == Outcome(1, failed=1)
    assert Outcome.read(path, 0) == Outcome(1, failed=1)
    PASSED.write(path)
    assert Outcome.read(path, 0) == PASSED


def test_each_line_names_its_owner(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(side="B").say("one\ntwo")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" s] B  one")
    assert second == "B  two"
