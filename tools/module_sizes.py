"""Sizes that may not grow: ``python -m tools.module_sizes [--write]``.

Three measures of the packages of ``pyproject.toml``: lines of code, folders with too many modules,
and fragments. A fragment is a small module whose only importer is in the same folder; it belongs in
its importer. ``tests/unit/repository/module_sizes.json`` records how much there may be.
``--write`` lowers the record to the sizes of today and never raises it. A change that needs more
lines raises the record by hand, and its commit message says why.
"""

import ast
import io
import json
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "unit" / "repository" / "module_sizes.json"
FRAGMENT_LINES = 60
FOLDER_MODULES_MAX = 30
_NOT_CODE = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """Sizes of all packages, or the record of them.

    ``folders``: number of modules, by folder, where it is above the maximum; ``fragments``: paths.
    """

    code_lines: int
    folders: Mapping[str, int]
    fragments: frozenset[str]

    @classmethod
    def recorded(cls) -> "ModuleSizes":
        body = json.loads(RECORD.read_text("utf-8"))
        return cls(body["code_lines"], body["folders"], frozenset(body["fragments"]))

    def growth(self, record: "ModuleSizes") -> list[str]:
        """Return a line for each size that is above ``record``."""
        failures = []
        if self.code_lines > record.code_lines:
            failures.append(
                f"{self.code_lines} lines of code, at most {record.code_lines}: "
                f"make the code smaller, or say why in the commit that raises {RECORD.name}"
            )
        for folder, number in sorted(self.folders.items()):
            limit = record.folders.get(folder, FOLDER_MODULES_MAX)
            if number > limit:
                failures.append(f"{folder} has {number} modules, at most {limit}: divide it")
        failures += [
            f"{path} has below {FRAGMENT_LINES} lines and one importer, beside it: fold it in there"
            for path in sorted(self.fragments - record.fragments)
        ]
        return failures

    def lowered_to(self, now: "ModuleSizes") -> "ModuleSizes":
        """Return this record without what is smaller ``now``."""
        return ModuleSizes(
            min(self.code_lines, now.code_lines),
            {
                folder: min(limit, now.folders[folder])
                for folder, limit in self.folders.items()
                if folder in now.folders
            },
            self.fragments & now.fragments,
        )

    def write(self) -> None:
        """Write this as the record."""
        body = {
            "code_lines": self.code_lines,
            "folders": dict(sorted(self.folders.items())),
            "fragments": sorted(self.fragments),
        }
        RECORD.write_text(json.dumps(body, indent=2) + "\n", "utf-8")


def packages() -> list[Path]:
    """Return the folders of the packages that a user installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [
        ROOT / path for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ]


def measured() -> ModuleSizes:
    """Measure the packages as they are in the work tree."""
    # Dotted name, path and text of each module.
    modules = {
        _dotted(path, package): (path, path.read_text("utf-8"))
        for package in packages()
        for path in sorted(package.rglob("*.py"))
    }
    trees = {name: ast.parse(text) for name, (_, text) in modules.items()}
    in_folders = Counter(str(path.parent.relative_to(ROOT)) for path, _ in modules.values())
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for imported in _imports(tree):
            importers[imported].add(name)
    return ModuleSizes(
        sum(code_lines(text, trees[name]) for name, (_, text) in modules.items()),
        {folder: number for folder, number in in_folders.items() if number > FOLDER_MODULES_MAX},
        frozenset(
            str(path.relative_to(ROOT))
            for name, (path, text) in modules.items()
            if path.name != "__init__.py"
            and text.count("\n") < FRAGMENT_LINES
            and _has_one_neighbour(name, importers[name])
        ),
    )


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines with code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def _dotted(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports, anywhere in it: modules, and names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _has_one_neighbour(name: str, importers: set[str]) -> bool:
    """Return whether the only importer is in the same folder."""
    folder = name.rpartition(".")[0]
    return len(importers) == 1 and next(iter(importers)).rpartition(".")[0] == folder


def main(arguments: list[str]) -> int:
    """Print the sizes; return 1 where one has grown."""
    now = measured()
    print(f"{now.code_lines} lines of code, {len(now.fragments)} fragments, {dict(now.folders)}")
    failures = now.growth(ModuleSizes.recorded()) if RECORD.exists() else []
    if arguments == ["--write"]:
        (ModuleSizes.recorded().lowered_to(now) if RECORD.exists() else now).write()
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
