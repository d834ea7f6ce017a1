"""The ratchet of language: no count is above the record, and each measure finds its examples."""

import subprocess
from pathlib import Path

import pytest

from tools import language

EMPTY = '"""Nothing to find here, in four words."""\n'


def found(text: str, measure: str, path: str = "tidemark/example.py") -> list[tuple[int, str]]:
    """Return line and words of each finding in a source."""
    return [(place.line, place.words) for place in language.read(path, text).places[measure]]


def test_no_count_is_above_the_record() -> None:
    # A count below the record passes: branches that lower it would conflict in its file.
    failures, _ = language.compare(language.read_all(), language.recorded())
    assert not failures, "\n".join(failures)


def test_every_measure_of_every_room_is_recorded() -> None:
    recorded = language.recorded()
    assert list(recorded) == [*language.ROOMS, *language.TEXT_ROOMS]
    assert all(list(row) == list(language.MEASURES) for row in recorded.values())


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("tidemark/tier/store.py", "tidemark"),
        ("e2e/pods/load.py", "tests"),
        ("README.md", "docs"),
        ("examples/01-first-topic/README.md", "docs"),
        ("charts/tidemark/values.yaml", "charts"),
        ("crds/tidemark.dev_topics.yaml", "crds"),
        ("Makefile", "build"),
    ],
)
def test_each_path_has_a_room(path: str, room: str) -> None:
    assert language.room_of(path) == room


def test_banned_words_are_found_in_docstrings_comments_and_messages() -> None:
    source = (
        '"""A module for whoever\n\nis told."""\n'
        "x = 1  # nobody\n"
        "# This goes\n"
        "# on.\n"
        'y = f"topic {x} is gone"\n'
        "raise ValueError(\n"
        '    "first part, "\n'
        '    "so many parts"\n'
        ")\n"
    )
    assert found(source, "banned") == [
        (4, "'nobody'"),
        (5, "'goes on'"),
        (10, "'so many'"),
        (7, "'is gone'"),
        (1, "'whoever'"),
        (3, "'told'"),
    ]


def test_a_finding_has_a_replacement() -> None:
    (place,) = language.read("docs/page.md", "# Page\n\nIt carries out KIP-405.\n").places["banned"]
    assert str(place) == "docs/page.md:3: 'carries out' -> implements, performs"


@pytest.mark.parametrize(
    "text",
    [
        "the leader holds a lock, keeps records and comes from a recommended list",
        "a million records depend on record size and on record batches",
        "two logs that can be told apart",
        "amend the manifest",
        "the code `whoever` and ``is told`` and [a link](whoever)",
    ],
)
def test_technical_uses_are_not_banned(text: str) -> None:
    assert found(f"{text}\n", "banned", "docs/page.md") == []
    assert found(f"# {text}\n", "banned") == []


def test_a_person_may_not_be_the_subject_of_a_sentence_but_of_a_question() -> None:
    assert found("First. Who begins waits.\n", "banned", "docs/page.md") == [(1, "'Who'")]
    assert found("First. Who may read a topic?\n", "banned", "docs/page.md") == []


def test_identifiers_and_code_are_not_prose() -> None:
    assert found("asked = told['nobody']\n", "banned") == []
    assert found("```\nnobody is told\n```\n", "banned", "docs/page.md") == []


@pytest.mark.parametrize(
    ("docstring", "count"),
    [
        ("Return the committed ISR of a partition.", 0),
        ("What is committed of a partition.", 1),
        ("Of a partition, what is committed.", 1),
        ("They come one after the other.", 1),
        ("May it lead the partition?", 1),
        ("See above for the whole story.", 1),
        ("Whatever", 0),
    ],
)
def test_openers_of_docstrings(docstring: str, count: int) -> None:
    assert len(found(f'def f():\n    """{docstring}"""\n', "openers")) == count
    # A string below an attribute is read like a docstring.
    assert len(found(f'class A:\n    x: int\n    """{docstring}"""\n', "openers")) == count


def test_docstrings_of_three_words_are_short_and_those_of_attributes_may_be() -> None:
    source = EMPTY + (
        'class A:\n    """One two three."""\n\n    x = 1\n    """In bytes."""\n\n'
        '    def f(self):\n        """One two three four."""\n'
    )
    assert found(source, "short_docstrings") == [(3, "'One two three.'")]


def test_long_sentences_in_pages_leave_out_tables_and_code() -> None:
    long = " ".join(["word"] * 31)
    page = (
        f"# {long}\n\nShort one.\nThen `{long}`.\n\n{long}.\n\n- An item.\n- {long}.\n\n"
        f"| {long} |\n\n```\n{long}\n```\n"
    )
    assert [line for line, _ in found(page, "long_sentences", "docs/page.md")] == [6, 9]


def test_sentences_of_thirty_words_are_no_finding() -> None:
    page = "Word" + " word" * 28 + ", e.g. this. Another" + " word" * 29 + ".\n"
    assert found(page, "long_sentences", "docs/page.md") == [
        (1, "31 words: Word word word word word word word word ...")
    ]


def test_long_sentences_in_help_and_descriptions() -> None:
    long = " ".join(["word"] * 31)
    assert len(found(f"option('--x', help='{long}')\n", "long_sentences")) == 1
    command = f'@app.command()\ndef f():\n    """{long}."""\n'
    assert len(found(command, "long_sentences")) == 1
    crd = f"spec:\n  properties:\n    a:\n      description: {long} is told\n"
    assert [line for line, _ in found(crd, "long_sentences", "crds/a.yaml")] == [4]
    assert found(crd, "banned", "crds/a.yaml") == [(4, "'told'")]


def test_comments_that_explain_are_sentences() -> None:
    source = (
        "# The index goes first, because readers look there.\n"
        "x = 1  # a race with the cleaner\n"
        "y = 2  # noqa: E501 this is a directive\n"
        "# three words only\n"
        "# z = f(x, y, 3, 4, 5)\n"
        "# --- ------ ------ ------ ---\n"
        "#: The name's documentation is not counted.\n"
        "z = '# neither is a string literal'\n"
    )
    findings = language.read("tidemark/example.py", source)
    assert (findings.comments, findings.lines) == (2, 8)


def test_a_room_lacks_comments_up_to_the_target() -> None:
    findings = language.read(
        "tidemark/example.py", "# One comment of five words.\n" + "x = 1\n" * 99
    )
    assert language.density([findings], "tidemark") == pytest.approx(10)
    counts = language.counts([findings])
    assert counts["tidemark"]["lacking_comments"] == 15
    # A room without code lacks none.
    assert counts["crds"]["lacking_comments"] == 0


def test_a_function_of_twenty_lines_needs_a_comment() -> None:
    body = "    x = 1\n"
    assert found("def f():\n" + body * 18, "uncommented_functions") == []
    assert found("def f():\n" + body * 19, "uncommented_functions") == [(1, "f: 20 lines")]
    commented = "def f():\n" + body * 19 + "    x = 1  # why it is one\n"
    assert found(commented, "uncommented_functions") == []
    after = "def f():\n" + body * 19 + "# of the next function\ndef g(): pass\n"
    assert len(found(after, "uncommented_functions")) == 1


def test_class_names_are_counted_apart_for_tests() -> None:
    source = "class A:\n    class Config: pass\n    class B: pass\ndef f():\n    class C: pass\n"
    paths = ["tidemark/a.py", "operator/b.py", "tests/c.py"]
    everything = [language.read(path, source) for path in paths]
    language._add_class_names(everything)
    names = [(place.path, place.words.split()[0]) for place in all_of(everything, "class_names")]
    assert names == [
        ("tidemark/a.py", "'A'"),
        ("tidemark/a.py", "'B'"),
        ("operator/b.py", "'A'"),
        ("operator/b.py", "'B'"),
    ]


def all_of(everything: list[language.Findings], measure: str) -> list[language.Place]:
    """Return all findings of a measure, in the order of the files."""
    return language.places(everything, measure, "all")


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("tidemark/told.py", 1),
        ("tidemark/told/__init__.py", 1),
        ("tidemark/told/store.py", 0),
        ("tests/test_ways_in.py", 1),
        ("tidemark/_words.py", 1),
        ("tidemark/takeover.py", 0),
        ("tidemark/take_overs.py", 1),
        ("tests/test_taking_over.py", 1),
        ("tidemark/takenover.py", 1),
        ("tidemark/password.py", 0),
    ],
)
def test_module_names(path: str, count: int) -> None:
    assert len(found(EMPTY, "module_names", path)) == count


def test_variables_called_each() -> None:
    source = "for each in a: pass\nb = {k: each for k, (each, _) in a}\neach = 1\n"
    assert [line for line, _ in found(source, "each_variables")] == [2, 1]


def test_comments_of_other_files() -> None:
    makefile = "# Whoever runs this\nwhoever: is told\n\techo nobody # is told\n"
    assert found(makefile, "banned", "Makefile") == [(1, "'Whoever'"), (3, "'told'")]
    assert found("-- is told\nnobody = 1\n", "banned", "argocd/health.lua") == [(1, "'told'")]
    assert found("a: 1  # whoever\nnotes: nobody\n", "banned", "charts/a/values.yaml") == [
        (1, "'whoever'"),
        (2, "'nobody'"),
    ]


def test_comparison_with_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_grown_since_record", set)
    everything = [language.read("docs/a.md", "Nobody is told.\n")]
    assert language.compare(everything, {"docs": {"banned": 2}}) == ([], [])
    (failure,), _ = language.compare(everything, {"docs": {"banned": 1}})
    assert failure.startswith("docs: banned is 2, at most 1.")
    assert "docs/a.md:1: 'Nobody' -> name the part" in failure
    failures, notes = language.compare(everything, {"docs": {"banned": 3}})
    assert failures == []
    assert notes[0] == "docs: banned is 2, the record says 3"


def test_the_record_is_only_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "RECORD", tmp_path / "language.json")
    language.write({"docs": {"banned": 5, "openers": 5}})
    language.write({"docs": {"banned": 4, "openers": 6}})
    assert language.recorded() == {"docs": {"banned": 4, "openers": 5}}


def test_changed_files_may_exchange_findings_but_not_add_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]

    def run(*arguments: str) -> None:
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "a.md").write_text("Nobody reads.\n\nNobody writes.\n")
    run("init", "-q")
    run("add", ".")
    run("commit", "-q", "-m", "First")
    # One of two findings moves into a new page.
    (tmp_path / "a.md").write_text("Nobody reads.\n")
    (tmp_path / "b.md").write_text("Nobody writes.\n")
    run("add", ".")
    assert language.main(["--changed"]) == 0
    (tmp_path / "b.md").write_text("Nobody writes, whoever reads.\n")
    assert language.main(["--changed"]) == 1


def test_list_prints_the_places_of_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    # The counter's own file contains the banned words and is not counted.
    assert language.main(["--list", "banned", "tests", "tools/language.py"]) == 0
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit):
        language.main(["--list", "manners", "tests"])
