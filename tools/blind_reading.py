"""Sample functions of several projects for a blind comparison of their readability.

The sample has the same number of functions of Tidemark and of the other projects together, shuffled
and without the names of the projects. Readers who know none of them rate each function from 1 to 10
for the clarity of names, docstring and comments. ``--rate`` joins their ratings with the key::

    python -m tools.blind_reading sample FOLDER kopf=DIR patroni=DIR aiokafka=DIR [--seed 1]
    python -m tools.blind_reading rate FOLDER/key.json RATINGS.json...

FOLDER gets ``functions.md``, which is for the readers, and ``key.json``, which is not. A file of
ratings is an object of function number to rating.
"""

import argparse
import ast
import json
import random
import re
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = "tidemark"
OWN_FOLDERS = ("tidemark", "operator", "broker_image", "pipeline", "cli")
FUNCTIONS = 30
LINES_MIN, LINES_MAX = 15, 120
_TEST_FOLDERS = frozenset({"tests", "test", "e2e", "examples", "docs", "build", ".venv"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.blind_reading", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="write functions.md and key.json")
    sample.add_argument("folder", type=Path)
    sample.add_argument("projects", nargs="+", metavar="NAME=DIR")
    sample.add_argument("--seed", type=int, default=1)
    rate = commands.add_parser("rate", help="print each project's mean rating")
    rate.add_argument("key", type=Path)
    rate.add_argument("ratings", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "rate":
        return _rate(options.key, options.ratings)
    projects = {name: Path(folder) for name, _, folder in map(_pair, options.projects)}
    return _sample(options.folder, projects, random.Random(options.seed))


def _pair(text: str) -> tuple[str, str, str]:
    if not Path(text.partition("=")[2]).is_dir():
        sys.exit(f"{text}: give NAME=DIR, with the folder of the project's sources")
    return text.partition("=")


def _sample(folder: Path, projects: Mapping[str, Path], chance: random.Random) -> int:
    # Tidemark's half: equally likely functions of all rooms. The other half is shared equally.
    own = [text for name in OWN_FOLDERS for text in _functions(ROOT / name)]
    drawn = [(OWN, text) for text in chance.sample(own, FUNCTIONS)]
    for name, source in projects.items():
        found = list(_functions(source))
        drawn += [(name, text) for text in chance.sample(found, FUNCTIONS // len(projects))]
    chance.shuffle(drawn)
    names = re.compile("|".join([OWN, "tide", "zalando", *map(re.escape, projects)]), re.IGNORECASE)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "functions.md").write_text(
        "".join(
            f"## Function {number}\n\n```python\n{names.sub('project', text)}\n```\n\n"
            for number, (_, text) in enumerate(drawn, start=1)
        )
    )
    key = {str(number): name for number, (name, _) in enumerate(drawn, start=1)}
    (folder / "key.json").write_text(json.dumps(key, indent=1) + "\n")
    print(f"{len(drawn)} functions in {folder / 'functions.md'}")
    return 0


def _functions(folder: Path) -> Iterator[str]:
    """Yield the source of each function of 15 to 120 lines, tests left out."""
    for path in sorted(folder.rglob("*.py")):
        if _TEST_FOLDERS & set(path.relative_to(folder).parts):
            continue
        source = path.read_text("utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            if LINES_MIN <= (node.end_lineno or first) - node.lineno + 1 <= LINES_MAX:
                yield textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))


def _rate(key_path: Path, ratings: Sequence[Path]) -> int:
    key = json.loads(key_path.read_text())
    by_project: dict[str, list[float]] = {}
    for path in ratings:
        for number, rating in json.loads(path.read_text()).items():
            by_project.setdefault(key[number], []).append(float(rating))
    for name, values in sorted(by_project.items(), key=lambda item: -statistics.mean(item[1])):
        print(f"{name}: mean {statistics.mean(values):.2f} of {len(values)} ratings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
