"""The kubectl commands that documentation, manifests and messages tell people to run.

Kinds of other projects have the plural and singular names of Tidemark's (Redpanda's topics and
users, Knative's brokers, Cluster API's clusters): kubectl then takes one of them, whichever it
finds first. So a command must name the full resource (``topics.tidemark.dev``) or a short name
(``tmt``).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidemark_operator.resources.kinds import KINDS

ROOT = Path(__file__).parents[1]
_FOLDERS = ("docs", "examples", "charts", "operator", "cli", "broker_image", "tidemark", "pipeline")
_TEXTS = {".md", ".yaml", ".yml", ".txt", ".tpl", ".sh", ".ipynb", ".json"}
#: Any name of a kind that is not its own: Name -> what to write instead.
AMBIGUOUS = {
    name: f"{kind.plural}.tidemark.dev"
    for kind in KINDS
    for name in (kind.plural, kind.kind.lower(), kind.kind, f"{kind.kind}s")
}
_VERBS = {
    "get", "describe", "delete", "annotate", "label", "edit", "patch", "explain", "wait", "scale",
}  # fmt: skip
_COMMAND = re.compile(r"\bkubectl\s+([^`|;&\n]*)")
_WORD = re.compile(r"[^\s\"'`()]+")


class Command(NamedTuple):
    """One command; ``where`` is file and line."""

    where: str
    text: str


def commands() -> Iterator[Command]:
    """Return every kubectl command in the repository's texts and programs."""
    for path in sorted(_files()):
        name = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        # In programs only strings are looked at, where f-strings have NAME for values.
        if path.suffix == ".py":
            found = [
                (line, match)
                for line, string in strings_of(ast.parse(text))
                for match in _COMMAND.findall(string)
            ]
        else:
            found = [
                (number, match)
                for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1)
                for match in _COMMAND.findall(line)
            ]
        for line, match in found:
            yield Command(f"{name}:{line}", f"kubectl {match.strip()}")


def ambiguous_names(command: str) -> list[str]:
    """Return the words of a command that may name a kind of another project, too."""
    words = [word.rstrip(".,:") for word in _WORD.findall(command)][1:]
    verb = next((word for word in words if word in _VERBS), None)
    if verb is None:
        return []
    named, is_value = [], False
    for word in words[words.index(verb) + 1 :]:
        if word.startswith("-"):
            # The flags that take their value as a word of its own.
            is_value = word in {"-n", "--namespace", "-o", "--output", "-l", "--selector", "-p"}
        elif is_value:
            is_value = False
        elif "/" in word or not named:  # the first word is a kind, or every word is kind/name
            named.append(word)
    kinds = [kind for word in named for kind in word.split("/", 1)[0].split(",")]
    return [kind for kind in kinds if kind.split(".", 1)[0] in AMBIGUOUS and "tidemark" not in kind]


def _files() -> Iterator[Path]:
    yield from (path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in _TEXTS or path.suffix == ".py":
                yield path


def strings_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each string. Values of f-strings become NAME."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else "NAME" for part in node.values
            )
            yield node.lineno, " ".join("".join(map(str, parts)).split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
