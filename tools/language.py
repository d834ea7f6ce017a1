"""Count departures from the project's language rules, for each room of the repository.

``python -m tools.language`` prints the counts and fails if one is above the record in
``tests/unit/repository/language.json``. A count may only fall, so the record is a ratchet.

- ``--list MEASURE ROOM [PATHS...]`` prints every place as ``path:line: words -> instead``.
- ``--write`` lowers the record to the counts of today. It never raises a count.
- ``--changed [COMMIT]`` compares the changed files with their versions in HEAD, for pre-commit.
- ``--check`` prints only failures and notes.
"""

import argparse
import ast
import gc
import json
import math
import re
import signal
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/unit/repository/language.json"

#: Words without a technical use, each with the plain words. A space stands for any white space.
BANNED = {
    # The subject of a sentence is a part of the system, not a person.
    r"whoever|whosoever": "name the part: the caller, the client, the leader",
    r"nobody|no one": "name the part: no client, no broker, no caller",
    r"somebody|someone": "name the part: a client, a user, another process",
    r"(?-i:(?<=[.:;!?])\s+Who)\b(?![^.?!]*\?)": "name the part: A broker that ...",
    # Kafka and Kubernetes have verbs for what processes exchange.
    r"told(?! apart)": "receives, is notified of, reads",
    r"(hears?|heard|hearing) of": "receives, is notified of, reads",
    r"learns|learnt|learn(ed)? of": "receives, reads",
    r"asks|asked": "requests, queries",
    # Where a thing is, and what happens to it.
    r"(stands?|stood|standing) in": "is in, is stored in, contains",
    r"(stands?|stood|standing) still": "stops, does not advance, is blocked",
    r"(lies?|lay|lying) in": "is in, is stored in, contains",
    r"(goes|go|went|going|gone) on": "continues, resumes",
    r"(begins?|began|begun|beginning) (anew|again)": "restarts",
    r"again from the (beginning|start)": "restarts",
    r"(is|are|was|were|be|been|being) gone": "is deleted, has disconnected, does not exist",
    r"(comes?|came|coming) to be": "is created",
    r"(puts?|putting) (\w+ ){0,4}?on record": "persists, records",
    r"on record(?! (batch|field|format|header|key|set|size|value)\w*\b)": "persisted, recorded",
    r"keeps? (tiered )?(topics|brokers)": "manages",
    r"(carry|carries|carried|carrying) (\w+ )?out": "implements, performs",
    r"mend(s|ed|ing)?": "fix, repair",
    # The desired state is the spec.
    r"as it is wanted": "as the spec says, the desired state",
    r"what is declared": "the desired state, the spec",
    # Idioms: each needs another sentence.
    r"lest": "so that ... does not",
    r"anew": "again",
    r"(so|that) many": "give the number or its name",
    r"besides": "also, in addition, other than",
    r"of these": "repeat the noun",
    r"seen to hold": "verified by, is guaranteed by",
}
OPENERS = {"What", "Who", "Whoever", "Where", "Of", "By", "How", "Whose", "Whom", "They", "It"}
MODULES = {
    *("asked", "beneath", "burial", "comebacks", "departure", "elsewhere", "held_states", "knocks"),
    *("rest", "takings", "tally", "told", "wanted", "ways_in", "words"),
}

#: The measures, each with what to do about a finding.
MEASURES = {
    "banned": "write the plain words",
    "openers": "begin with an imperative or a noun phrase: Return ..., Head of ...",
    "short_docstrings": "say what the name does not say, or leave the docstring out",
    "long_sentences": "split the sentence: 25 words at most, one idea in each",
    "lacking_comments": "explain why, at the line where the question arises",
    "uncommented_functions": "comment each step of the function",
    "class_names": "give each class a name of its own",
    "module_names": "name the module after what it contains",
    "each_variables": "name the variable after the element: replica, segment",
}
#: Written by programs from sources that are counted themselves, and entries of past releases.
EXEMPT = re.compile(
    r"CHANGELOG\.md$|charts/[\w-]+/files/(crds|policies|dashboards)/|LICENSE$|requirements.*\.txt$"
    r"|tools/language\.py$|tests/unit/repository/test_language\.py$|tests/unit/repository/language\.json$"
)
ROOMS = ("tidemark", "operator", "broker_image", "pipeline", "cli", "tests")
TEXT_ROOMS = ("docs", "charts", "crds", "build")
SENTENCE_WORDS_MAX = 30
SHORT_DOCSTRING_WORDS = 3
FUNCTION_LINES = 20
COMMENT_WORDS_MIN = 4
#: Explanatory comments per 1,000 lines that are not blank; kopf 1.45 has 79, counted the same way.
COMMENTS_WANTED = 25
PLACES_SHOWN = 20

_BANNED = [
    (re.compile(rf"(?i){_prefix}(?:{words.replace(' ', _space)})\b"), instead)
    for _prefix, _space in [(r"\b", r"\s+")]
    for words, instead in BANNED.items()
    if not words.startswith("(?-i")
] + [(re.compile(words), instead) for words, instead in BANNED.items() if words.startswith("(?-i")]
#: Comments and string literals of Python 3.11, in which no f-string contains its own quote.
_LEXEMES = re.compile(
    r"(?s)(?P<comment>#[^\n]*)"
    r'|"""(?:[^"\\]|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]|\\.|'(?!''))*'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
)
_DIRECTIVE = re.compile(r"\s*(noqa|type:|pragma|mypy:|ruff:|fmt:|pylint:|!|-\*-)")
_HELP_KEYWORDS = {"help", "short_help", "description", "epilog"}
_SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)[.!?][\"')\]]*\s+(?=[\"'(\[{]*[A-Z0-9{])"
)
_INLINE_CODE = re.compile(r"(?s)(`+)(?!`).+?(?<!`)\1(?!`)")
_LINK = re.compile(r"(?s)!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?")


class Place(NamedTuple):
    """A finding: line, words and what to write instead."""

    path: str
    line: int
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words} -> {self.instead}"


@dataclass
class Findings:
    """All findings of one file, and the figures that only make sense for a whole room."""

    path: str
    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    #: Classes outside functions, by name and line.
    classes: list[tuple[str, int]] = field(default_factory=list)
    lines: int = 0
    comments: int = 0

    def add(self, measure: str, line: int, words: str, instead: str = "") -> None:
        self.places[measure].append(Place(self.path, line, words, instead or MEASURES[measure]))


def room_of(path: str) -> str:
    """Return the room that a path of the repository belongs to."""
    top = path.partition("/")[0]
    if top == "e2e":
        return "tests"
    if top in (*ROOMS, "charts", "crds", "docs"):
        return top
    if top in ("examples", "argocd") or top.endswith(".md"):
        return "docs"
    return "build"


# Text: banned words and sentences


def _banned(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield offset, words and replacement of each banned phrase; of two that overlap, the first."""
    found = sorted(
        (match.start(), -match.end(), match.group(), instead)
        for pattern, instead in _BANNED
        for match in pattern.finditer(text)
    )
    end = 0
    for start, negative_end, words, instead in found:
        if start >= end:
            yield start, " ".join(words.split()), instead
            end = -negative_end


def _without_code(text: str) -> str:
    """Replace inline code by one word and links by their text, on unchanged line numbers."""

    def word(match: re.Match[str]) -> str:
        return "Code" + "\n" * match.group().count("\n")

    def link(match: re.Match[str]) -> str:
        return match[1] + "\n" * (match.group().count("\n") - match[1].count("\n"))

    return _LINK.sub(link, _INLINE_CODE.sub(word, text)) if "`" in text or "[" in text else text


def _sentences(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the offset and the words of each sentence."""
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        yield start, [word for word in text[start:end].split() if re.search(r"\w", word)]
        start = end


def _count_banned(findings: Findings, line: int, text: str) -> None:
    for offset, words, instead in _banned(_without_code(text)):
        findings.add("banned", line + text.count("\n", 0, offset), f"'{words}'", instead)


def _count_sentences(findings: Findings, line: int, text: str) -> None:
    text = _without_code(text)
    for offset, words in _sentences(text):
        if len(words) > SENTENCE_WORDS_MAX:
            place = line + text.count("\n", 0, offset)
            findings.add("long_sentences", place, f"{len(words)} words: {' '.join(words[:8])} ...")


# Python


def _comments(source: str) -> list[tuple[int, bool, str]]:
    """Return line, whether nothing else is on it, and text of each comment."""
    comments = []
    line, seen = 1, 0
    for match in _LEXEMES.finditer(source):
        if match["comment"] is not None:
            line += source.count("\n", seen, match.start())
            seen = match.start()
            alone = not source[source.rfind("\n", 0, seen) + 1 : seen].strip()
            comments.append((line, alone, match["comment"][1:]))
    return comments


def _is_explanatory(comment: str) -> bool:
    """Return whether a comment explains: no directive, separator, code, or ``#:`` of a name."""
    words = [word for word in comment.split() if re.search(r"\w", word)]
    if len(words) < COMMENT_WORDS_MIN or comment.startswith(":") or _DIRECTIVE.match(comment):
        return False
    try:
        ast.parse(comment.strip())
    except (SyntaxError, ValueError):
        return True
    return False


def _count_comments(findings: Findings, comments: list[tuple[int, bool, str]]) -> None:
    """Count the comments that explain, and banned words in blocks of adjacent lines."""
    blocks: list[tuple[int, list[str]]] = []
    last = None
    for line, alone, text in comments:
        findings.comments += _is_explanatory(text)
        if alone and last == line - 1:
            blocks[-1][1].append(text)
        else:
            blocks.append((line, [text]))
        last = line if alone else None
    for line, texts in blocks:
        _count_banned(findings, line, "\n".join(texts))


def _text_of(node: ast.expr | None) -> str | None:
    """Return the text of a string literal, with ``{}`` for what an f-string computes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) or "{}" for part in node.values)
    return None


def _line_in(lines: list[str], node: ast.expr, words: str) -> int:
    """Return the first line of a literal that contains the words, else the literal's first."""
    first, last = node.lineno, node.end_lineno or node.lineno
    for sought in (words, words.split(maxsplit=1)[0]):
        for line in range(first, last + 1):
            if sought in lines[line - 1]:
                return line
    return first


def _count_docstring(findings: Findings, node: ast.expr, text: str, *, of_definition: bool) -> None:
    """Count a docstring, or the string below an attribute, which may be short."""
    first = re.match(r"\W*(\w+)", text)
    question = re.match(r"[^.!?:]*\?", text)
    if (first and first[1].capitalize() in OPENERS) or question or text.startswith("See above"):
        findings.add("openers", node.lineno, f"'{' '.join(text.split()[:6])}'")
    if of_definition and len(text.split()) <= SHORT_DOCSTRING_WORDS:
        findings.add("short_docstrings", node.lineno, f"'{text.strip()}'")


def _targets(node: ast.expr) -> Iterator[ast.Name]:
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _targets(element)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether typer shows the function's docstring to users."""
    return any(
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr in ("command", "callback")
        for decorator in node.decorator_list
    )


class _Reader:
    """One pass over the syntax tree of a file."""

    def __init__(self, findings: Findings, source: str) -> None:
        self.findings = findings
        self.lines = source.split("\n")
        comments = _comments(source)
        _count_comments(findings, comments)
        self.comment_lines = [line for line, _, text in comments if not _DIRECTIVE.match(text)]
        #: Docstrings of definitions, and the literals that were counted with their parents.
        self.docstrings: set[ast.expr] = set()

    def read(self, tree: ast.Module) -> None:  # noqa: PLR0912 - one story, and calls cost half a second
        # A stack instead of recursion: a third faster, and a long chain of calls is no limit.
        stack: list[tuple[ast.AST, bool]] = [(tree, False)]
        while stack:
            node, is_local = stack.pop()
            if isinstance(node, ast.Constant | ast.JoinedStr):
                self._literal(node)
                # The texts of an f-string were counted together; its expressions may contain more.
                if isinstance(node, ast.JoinedStr):
                    computed = (p for p in node.values if isinstance(p, ast.FormattedValue))
                    stack.extend((part.value, is_local) for part in computed)
                continue
            if isinstance(node, ast.Module | ast.ClassDef):
                self._definition(node)
                if (
                    isinstance(node, ast.ClassDef)
                    and not is_local
                    and node.name not in ("Meta", "Config")
                ):
                    self.findings.classes.append((node.name, node.lineno))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._definition(node)
                self._function(node)
                is_local = True
            elif isinstance(node, ast.Expr) and _text_of(node.value) is not None:
                # A docstring stands before what it contains: its definition has been here before.
                self._docstring(node.value)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                for target in _targets(node.target):
                    if target.id == "each":
                        self.findings.add("each_variables", target.lineno, "'for each'")
            elif isinstance(node, ast.keyword) and node.arg in _HELP_KEYWORDS:
                text = _text_of(node.value)
                if text is not None:
                    _count_sentences(self.findings, node.value.lineno, text)
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    stack.extend((item, is_local) for item in value if isinstance(item, ast.AST))
                elif isinstance(value, ast.AST) and value._fields:
                    stack.append((value, is_local))

    def _literal(self, node: ast.expr) -> None:
        text = _text_of(node)
        if text is None or (" " not in text and node not in self.docstrings):
            return
        for offset, words, instead in _banned(_without_code(text)):
            # Lines of a docstring are lines of the file; those of a literal in parts need a search.
            if (node.end_lineno or 0) - node.lineno == text.count("\n"):
                line = node.lineno + text.count("\n", 0, offset)
            else:
                line = _line_in(self.lines, node, words)
            self.findings.add("banned", line, f"'{words}'", instead)

    def _definition(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        if node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.docstrings.add(value)

    def _docstring(self, node: ast.expr) -> None:
        text = _text_of(node)
        assert text is not None
        of_definition = node in self.docstrings
        _count_docstring(self.findings, node, text, of_definition=of_definition)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        last = node.end_lineno or node.lineno
        length = last - node.lineno + 1
        if length >= FUNCTION_LINES:
            index = bisect_left(self.comment_lines, node.lineno)
            if index == len(self.comment_lines) or self.comment_lines[index] > last:
                self.findings.add(
                    "uncommented_functions", node.lineno, f"{node.name}: {length} lines"
                )
        if _is_command(node):
            _count_sentences(self.findings, node.lineno + 1, ast.get_docstring(node) or "")


def _read_python(findings: Findings, source: str) -> None:
    findings.lines = sum(1 for line in source.split("\n") if line.strip())
    _Reader(findings, source).read(ast.parse(source))
    wanted = math.ceil(COMMENTS_WANTED * findings.lines / 1000)
    if findings.comments < wanted:
        findings.add("lacking_comments", 1, f"{findings.comments} in {findings.lines} lines")
    _count_module_name(findings)


def _count_module_name(findings: Findings) -> None:
    path = Path(findings.path)
    # A package counts once, at its __init__.
    name = path.parent.name if path.stem == "__init__" else path.stem
    plain = name.lstrip("_").removeprefix("test_")
    if plain in MODULES or re.search(r"tak(e|es|ing|en)_?overs?(?<!takeover)", name):
        findings.add("module_names", 1, f"'{name}'")


# Markdown, YAML and other text

_FENCE = re.compile(r"\s*(```|~~~)")
_LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")
_LINE_OF_ITS_OWN = re.compile(r"\s*(\||#|!!!|\?\?\?|:::|={3,}|\[[^\]]+\]:)")


def _paragraphs(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield first line, whether it is prose, and text of each paragraph, item, heading and row."""
    fence = ""
    block: list[str] = []
    start = 1
    text = re.sub(r"(?s)<!--.*?-->", lambda match: "\n" * match.group().count("\n"), text)
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = _FENCE.match(line)
        alone = _LINE_OF_ITS_OWN.match(line) is not None
        starts = not line.strip() or mark or fence or alone or _LIST_ITEM.match(line)
        if starts and block:
            yield start, True, "\n".join(block)
            block = []
        if mark and (not fence or fence == mark[1]):
            fence = "" if fence else mark[1]
        elif fence or not line.strip():
            continue
        elif alone:
            if not line.lstrip().startswith("["):
                yield number, False, line
        else:
            start = start if block else number
            block.append(re.sub(r"^\s*>\s?|^\s*([-*+]|\d+[.)])\s+|<[^>]+>|\*", "", line))


def _read_markdown(findings: Findings, text: str) -> None:
    for line, is_prose, paragraph in _paragraphs(text):
        _count_banned(findings, line, paragraph)
        if is_prose:
            _count_sentences(findings, line, paragraph)


def _described(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield line and text of each description and summary in a YAML document."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value in ("description", "summary") and isinstance(value, yaml.ScalarNode):
                    yield value.start_mark.line + 1, value.value
                else:
                    stack.append(value)


def _read_definitions(findings: Findings, text: str, *, banned: bool) -> None:
    """Count sentences of descriptions, and their banned words where the rest is not counted."""
    for node in yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        for line, description in _described(node):
            _count_sentences(findings, line, description)
            if banned:
                _count_banned(findings, line, description)


def _read_comments(findings: Findings, text: str, mark: str) -> None:
    """Count banned words in comments that begin with a mark such as ``#``."""
    # All that is not a comment becomes a full stop, so that no phrase is seen across code.
    comment = re.compile(rf"(?:^|.*\s){mark}+:?(?:\s(.*))?$")
    lines = [
        (match[1] or "") if (match := comment.match(line)) else "." for line in text.split("\n")
    ]
    _count_banned(findings, 1, "\n".join(lines))


_MARKS = {".lua": "--", ".go": "//", ".java": "//", ".js": "//", ".mod": "//"}
_UNREAD = (".svg", ".sum", ".typed", ".xml", ".json", ".png")


def read(path: str, text: str) -> Findings:
    """Return all findings of one file, from its path in the repository and its text."""
    findings = Findings(path)
    suffix = Path(path).suffix
    if suffix == ".py":
        _read_python(findings, text)
    elif suffix == ".md":
        _read_markdown(findings, text)
    elif room_of(path) == "crds":
        _read_definitions(findings, text, banned=True)
    elif room_of(path) == "charts" or suffix == ".ipynb":
        # Values, notes, rules and templates: people read everything but the syntax.
        _count_banned(findings, 1, re.sub(r"(?m)^([ \t]*)#+", r"\1", text))
        if Path(path).name == "rules.yaml":
            _read_definitions(findings, text, banned=False)
    elif suffix not in _UNREAD:
        _read_comments(findings, text, _MARKS.get(suffix, "#"))
    return findings


# The repository


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def paths() -> list[str]:
    """Return the files that Git tracks or would track and that are counted."""
    output = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted(
        path
        for path in set(output.split("\0"))
        if path and not EXEMPT.match(path) and (ROOT / path).is_file()
    )


def read_all(only: Iterable[str] | None = None) -> list[Findings]:
    """Read all counted files, or those below the paths ``only``."""
    selected = paths()
    if only is not None:
        roots = tuple(only)
        below = tuple(f"{root}/" for root in roots)
        selected = [path for path in selected if path in roots or path.startswith(below)]
    # Syntax trees have no cycles worth collecting, and the collector takes a third of the time.
    gc.disable()
    try:
        everything = [read(path, (ROOT / path).read_text(encoding="utf-8")) for path in selected]
    finally:
        gc.enable()
    _add_class_names(everything)
    return everything


def _add_class_names(everything: list[Findings]) -> None:
    """Count classes whose names exist more than once, in tests and outside of them."""
    defined: dict[tuple[bool, str], list[tuple[Findings, int]]] = defaultdict(list)
    for findings in everything:
        in_tests = room_of(findings.path) == "tests"
        for name, line in findings.classes:
            defined[in_tests, name].append((findings, line))
    for (_, name), places in defined.items():
        if len(places) > 1:
            for findings, line in places:
                first = next((f"{f.path}:{n}" for f, n in places if (f, n) != (findings, line)), "")
                findings.add("class_names", line, f"'{name}' is also at {first}")


def counts(everything: list[Findings]) -> dict[str, dict[str, int]]:
    """Return the count of each measure in each room."""
    table = {room: dict.fromkeys(MEASURES, 0) for room in (*ROOMS, *TEXT_ROOMS)}
    for findings in everything:
        row = table[room_of(findings.path)]
        for measure, places in findings.places.items():
            row[measure] += len(places)
    # A ratio, so that new code has to be commented as well as old code, not better.
    for room, row in table.items():
        lacking = COMMENTS_WANTED - density(everything, room)
        row["lacking_comments"] = math.ceil(lacking) if lacking > 0 else 0
    return table


def density(everything: list[Findings], room: str) -> float:
    """Return a room's explanatory comments per 1,000 lines; enough of them where it has no code."""
    of_room = [findings for findings in everything if room_of(findings.path) == room]
    lines = sum(findings.lines for findings in of_room)
    return sum(findings.comments for findings in of_room) * 1000 / lines if lines else math.inf


def places(everything: list[Findings], measure: str, room: str) -> list[Place]:
    """Return all places of a measure in a room, or in all of them."""
    return [
        place
        for findings in everything
        if room in ("all", room_of(findings.path))
        for place in sorted(findings.places[measure])
    ]


def recorded() -> dict[str, dict[str, int]]:
    """Return the record: the highest count that each measure may have in each room."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def compare(
    everything: list[Findings], record: Mapping[str, Mapping[str, int]]
) -> tuple[list[str], list[str]]:
    """Return failures for counts above the record, and notes for counts below it."""
    failures, notes = [], []
    for room, row in counts(everything).items():
        for measure, count in row.items():
            limit = record.get(room, {}).get(measure, 0)
            if count > limit:
                failures.append(_failure(everything, measure, room, count, limit))
            elif count < limit:
                notes.append(f"{room}: {measure} is {count}, the record says {limit}")
    if notes:
        notes.append("lower the record: python -m tools.language --write")
    return failures, notes


def _failure(everything: list[Findings], measure: str, room: str, count: int, limit: int) -> str:
    found = places(everything, measure, room)
    # The record does not say where: files that have more than when it was written come first.
    grown = _grown_since_record() if measure != "class_names" else set()
    found.sort(key=lambda place: (place.path, measure) not in grown)
    lines = [f"{room}: {measure} is {count}, at most {limit}. Instead: {MEASURES[measure]}."]
    lines += [f"  {place}" for place in found[:PLACES_SHOWN]]
    if len(found) > PLACES_SHOWN:
        lines.append(f"  all {len(found)}: python -m tools.language --list {measure} {room}")
    return "\n".join(lines)


def _grown_since_record() -> set[tuple[str, str]]:
    """Return the files, with measures, that have more findings than when the record was written."""
    try:
        commit = _git("log", "-1", "--format=%H", "--", str(RECORD)).strip()
        changed = list(_changed_since(commit)) if commit else []
    except subprocess.CalledProcessError:
        # A shallow clone lacks the commit; the order is a convenience.
        return set()
    return {
        (now.path, measure)
        for then, now in changed
        for measure, found in now.places.items()
        if len(found) > len(then.places[measure])
    }


def _changed_since(commit: str) -> Iterator[tuple[Findings, Findings]]:
    """Yield the findings of each changed file, in ``commit`` and in the work tree."""
    # Fields end with NUL: status, path, and the new path of a renamed file.
    fields = iter(_git("diff", "--name-status", "-z", "-M", commit).split("\0"))
    for status in fields:
        if not status:
            continue
        before = next(fields)
        path = next(fields) if status.startswith("R") else before
        if EXEMPT.match(path):
            continue
        # A file that is new or deleted has an empty counterpart.
        old = "" if status == "A" else _git("show", f"{commit}:{before}")
        new = "" if status == "D" else (ROOT / path).read_text(encoding="utf-8")
        yield (
            read(before, old) if old else Findings(before),
            read(path, new) if new else Findings(path),
        )


def growth(changed: Iterable[tuple[Findings, Findings]]) -> list[str]:
    """Return a failure for each measure that has grown over all changed files together.

    Code that moves from one file to another brings its findings along and is no failure.
    """
    pairs = list(changed)
    failures = []
    for measure, instead in MEASURES.items():
        before = sum(len(then.places[measure]) for then, _ in pairs)
        after = sum(len(now.places[measure]) for _, now in pairs)
        # Whether a file has enough comments is a question for its room.
        if after <= before or measure == "lacking_comments":
            continue
        found = [
            place
            for then, now in pairs
            if len(now.places[measure]) > len(then.places[measure])
            for place in now.places[measure]
        ]
        failures.append(
            f"{measure} grows from {before} to {after}. Instead: {instead}."
            + "".join(f"\n  {place}" for place in found[:PLACES_SHOWN])
        )
    return failures


def write(table: Mapping[str, Mapping[str, int]]) -> None:
    """Lower the record to the counts of ``table``. A count that is above it stays as it was."""
    record = recorded()
    lowered = {
        room: {
            measure: min(count, record.get(room, {}).get(measure, count))
            for measure, count in row.items()
        }
        for room, row in table.items()
    }
    RECORD.write_text(json.dumps(lowered, indent=2) + "\n", encoding="utf-8")


def _print_table(everything: list[Findings]) -> None:
    width = max(map(len, MEASURES)) + 2
    table = counts(everything)
    print(" " * width + "".join(f"{room:>13}" for room in table) + f"{'all':>9}")
    for measure in MEASURES:
        row = [table[room][measure] for room in table]
        total = "" if measure == "lacking_comments" else sum(row)
        print(f"{measure:<{width}}" + "".join(f"{count:>13}" for count in row) + f"{total:>9}")
    densities = [density(everything, room) for room in table]
    shown = ["-" if math.isinf(value) else f"{value:.1f}" for value in densities]
    print(f"{'comments per 1,000':<{width}}" + "".join(f"{value:>13}" for value in shown))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", nargs=2, metavar=("MEASURE", "ROOM"), help="print every place")
    parser.add_argument("--write", action="store_true", help="lower the record")
    parser.add_argument("--check", action="store_true", help="print only failures and notes")
    parser.add_argument(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="COMMIT",
        help="compare changed files with their version in a commit (HEAD)",
    )
    parser.add_argument("paths", nargs="*", metavar="PATHS", help="files and folders to list")
    options = parser.parse_args(arguments)
    if options.list:
        measure, room = options.list
        if measure not in MEASURES or room not in (*ROOMS, *TEXT_ROOMS, "all"):
            parser.error(
                f"a measure is one of {', '.join(MEASURES)}; "
                f"a room is one of {', '.join((*ROOMS, *TEXT_ROOMS))}, or all"
            )
        roots = tuple(str(Path(path)) for path in options.paths)
        of_room = [path for path in paths() if room in ("all", room_of(path))]
        # Whether a class name exists once is known from all files alone.
        everything = read_all(None if measure == "class_names" else roots or of_room)
        for place in places(everything, measure, room):
            if not roots or place.path.startswith(roots):
                print(place)
        return 0
    if options.changed:
        failures = growth(_changed_since(options.changed))
        if failures:
            print(*failures, sep="\n")
        return bool(failures)
    everything = read_all([str(Path(path)) for path in options.paths] or None)
    if options.write:
        write(counts(everything))
    if not options.check:
        _print_table(everything)
    if options.paths:
        return 0
    failures, notes = compare(everything, recorded())
    if failures or notes:
        print(*failures, *notes, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    # A listing ends quietly when `head` has read enough.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
