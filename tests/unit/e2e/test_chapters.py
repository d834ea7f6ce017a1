"""Chapters of `make e2e`: selection and order."""

import pytest

from e2e.pods.chapters import CHAPTERS, chosen
from e2e.pods.unsupported_machine import CannotRun


def test_all_chapters_run_except_those_on_request() -> None:
    names = [chapter.name for chapter in chosen(())]
    assert names[0] == "install"
    assert names[-1] == "removal"
    assert "hold" not in names


def test_requested_chapters_run_in_the_order_of_the_table() -> None:
    assert [chapter.name for chapter in chosen(("hold", "faults"))] == ["install", "faults", "hold"]


def test_unknown_chapter_is_refused_with_all_names() -> None:
    with pytest.raises(CannotRun) as refused:
        chosen(("?",))
    assert all(f"{chapter.name}: {chapter.what}" in str(refused.value) for chapter in CHAPTERS)
