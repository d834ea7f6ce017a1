"""Rules for every file of the repository: its citations exist, it is finished, and it is text.

A rule is here, not in a guideline, once a machine can check it: each banned word comes with its
replacement. ruff checks rules that concern Python alone.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_ELSEWHERE = "the KIP and its section, Kafka's class, or a page of docs/"
#: Each with what to write instead: a reader must find what a comment leans on.
BANNED = {
    r"(?i)\b(kafka-facts|field-notes|infra-notes|crd-rules)\b": _ELSEWHERE,
    r"(?i)\((the )?design\b|\b(in|of|per|see|says) the design\b|\bdesign\.md\b": _ELSEWHERE,
    r"(?i)\bseeds?/|\bthe seeds? (say|demand|want|name|call)|\b(as )?in the seed\b": _ELSEWHERE,
    r"\bKIP [0-9]": "KIP-950, as Apache Kafka writes it",
    r"(^|[\s\"'`(])/(work|root)/": "a path below the repository: no other machine has this one",
    r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b": "do it, or say in docs/ that it is not built",
    r"(?m)^(<{7}|>{7}|={7})( |$)": "the one side or the other of the merge",
}
#: Lists of hashes, written by a program.
GENERATED = re.compile(r"(^|/)(requirements([-/]\w+)?\.txt|go\.sum|package-lock\.json)$")
#: Generated files, as large as the models or the list of promises make them.
DEFINITIONS = re.compile(r"(^|/)crds/[\w.]+\.yaml$|^docs/(reference/resources|traceability)\.md$")
FILE_BYTES_MAX, DEFINITION_BYTES_MAX = 64 * 1024, 128 * 1024


def _paths() -> list[str]:
    """Return the files that Git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({path for path in output.split("\0") if path and (ROOT / path).is_file()})


PATHS = _paths()
WRITTEN = [path for path in PATHS if not GENERATED.search(path)]


def _written() -> Iterator[tuple[str, str]]:
    for path in WRITTEN:
        if Path(path) != Path(__file__).relative_to(ROOT):
            yield path, (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("banned", "instead"), BANNED.items())
def test_no_file_contains_banned_text(banned: str, instead: str) -> None:
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}"
        for path, text in _written()
        for match in re.finditer(banned, text)
    ]
    assert not found, f"write {instead}"


def test_every_file_is_small_text_that_ends_with_one_newline() -> None:
    for path in WRITTEN:
        content = (ROOT / path).read_bytes()
        limit = DEFINITION_BYTES_MAX if DEFINITIONS.search(path) else FILE_BYTES_MAX
        assert len(content) <= limit, path
        assert b"\0" not in content, path
        assert b"\r" not in content, path
        assert not content or (content.endswith(b"\n") and not content.endswith(b"\n\n")), path


def test_a_page_has_one_title_and_no_trailing_space() -> None:
    for path, text in _written():
        if path.endswith(".md"):
            prose = re.sub(r"(?ms)^```.*?^```", "", text)
            titles = [line for line in prose.splitlines() if line.startswith("# ")]
            assert len(titles) == 1, path
            assert not re.search(r"(?m)[ \t]+$", text), path


def test_pinned_packages_are_installed_without_looking_for_others() -> None:
    """Otherwise pip looks for the newest package of an extra, for which there is no hash."""
    recipes = (ROOT / "Makefile").read_text("utf-8").splitlines()
    pinned = [line for line in recipes if "--require-hashes" in line]
    assert pinned
    assert [line for line in pinned if "--no-deps" not in line] == []
