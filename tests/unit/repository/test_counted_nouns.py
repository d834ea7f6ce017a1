"""Messages count and list with the helpers of ``tidemark.message_text``, which agree in number."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.message_text import (
    clause,
    closest,
    count,
    did_you_mean,
    names,
    numbered,
    numbers,
    them,
)

ROOT = Path(__file__).parents[3]
ROOMS = ("cli", "operator", "pipeline")
NOUNS = {
    *("brokers", "carriers", "columns", "commits", "epochs", "events", "exports", "fields"),
    *("files", "groups", "keys", "leaders", "letters", "listeners", "nodes", "objects"),
    *("orphans", "partitions", "placeholders", "producers", "records", "replicas", "rows"),
    *("runs", "segments", "snapshots", "tasks", "topics", "uploads", "users", "versions"),
}
#: Messages in which a number of one cannot occur, with the reason.
PLURAL = {
    "operator/tidemark_operator/controller/state/rows.py": "rows have several fields",
    "operator/tidemark_operator/controller/status/export.py": "one failure has its own sentence",
    "operator/tidemark_operator/topic_changes/creation.py": "a constraint of several brokers",
    "cli/tidemark_cli/imports/kafka_topics.py": "partitions with different numbers of replicas",
    "operator/tidemark_operator/kube/secrets.py": "a kind of objects",
    "cli/tidemark_cli/tier/sql.py": "two topics with the same name in SQL",
}


def texts(path: Path) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield each expression of an f-string with the words before and after it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        parts = [ast.Constant(""), *node.values, ast.Constant("")]
        for before, part, after in zip(parts, parts[1:], parts[2:], strict=False):
            if isinstance(part, ast.FormattedValue):
                yield part.value, _text(before), _text(after)


def _text(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else ""


def uncounted(path: Path) -> Iterator[str]:
    """Yield the expressions whose neighbour is a noun with a fixed plural."""
    for value, before, after in texts(path):
        source = ast.unparse(value)
        # Constants never are one, and texts are no numbers.
        is_number = not source.isupper() and not source.endswith((".name", "kind", "_kind"))
        following = after.split()[:2] if after.startswith(" ") else []
        plural = [word.strip(".,;:)") for word in following]
        # "of the rows" and "partition 3 lacked records" have no number before the noun.
        adjectives = {"more", "dead", "unfinished", "other", "similar"}
        nouns = plural[1:] if plural[:1] and plural[0] in adjectives else plural[:1]
        if is_number and NOUNS.intersection(nouns) and "count(" not in source:
            yield f"{{{source}}}{after[:30]!r}"
        # Such as "brokers {numbers(down)}".
        listed = before.split()[-1:] if before.endswith(" ") and "numbers(" in source else []
        if NOUNS.intersection(listed):
            yield f"{before[-30:]!r}{{{source}}}"


def test_no_message_has_a_fixed_plural_beside_a_number() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {problem}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in PLURAL
        for problem in uncounted(path)
    ]
    assert not found, "use count() or numbered():\n" + "\n".join(found)


def test_fixed_plurals_are_found(tmp_path: Path) -> None:
    path = tmp_path / "messages.py"
    path.write_text('f"{done:,} commits; brokers {numbers(down)} are down, {LIMIT} topics"\n')
    assert len(list(uncounted(path))) == 2


def test_nouns_and_verbs_agree_with_their_number() -> None:
    assert count(1, "commit") == "1 commit"
    assert count(2000, "segment") == "2,000 segments"
    assert [count(n, "partition", "needs") for n in (1, 2)] == [
        "1 partition needs",
        "2 partitions need",
    ]
    assert numbered("broker", [2, 2], "is") == "broker 2 is"
    assert numbered("partition", range(10), "has") == (
        "partitions 0, 1, 2, 3, 4, 5, 6, 7 and 2 more have"
    )
    assert (them([2]), them([1, 2])) == ("it", "them")
    assert numbers([3, 1]) == "1, 3"
    assert names(["b", "a", "c"], shown=2) == "b, a and 1 more"


@pytest.mark.parametrize("text", ["not found.", "not found", "not found. "])
def test_a_foreign_text_ends_without_a_full_stop(text: str) -> None:
    assert clause(text) == "not found"


def test_a_misspelt_name_has_the_most_similar_ones_first() -> None:
    known = ["orders", "ORDERS", "orders-eu", "clicks", "order_items", "or" * 120]
    assert closest("ordres", known) == ["orders", "ORDERS", "orders-eu"]
    assert closest("CLICK", known) == ["clicks"]
    assert closest("payments", known) == []
    assert closest("orders", []) == []
    # A name cannot control the terminal.
    assert closest("orders", ["order\x1b"]) == []
    # Names that repeat themselves are compared in bounded time.
    assert closest("a17" * 60, (f"a{n}" * 60 for n in range(20_000)))[:1] == ["a17" * 60]
    assert did_you_mean(["a", "b"]) == " Did you mean a or b?"
    assert did_you_mean([]) == ""
