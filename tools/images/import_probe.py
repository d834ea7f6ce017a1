"""Imports of a program and its environment, printed as JSON for comparison between images.

The text is passed to Python, because it is not part of an image. It imports the program's packages
with all their modules, and everything in any ``import`` statement, inside functions too.
"""

import ast
import hashlib
import importlib
import importlib.util
import json
import pkgutil
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path


def main(packages: list[str]) -> None:
    """Print what came of each import, and which files of packages were loaded."""
    outcomes: dict[str, str] = {}
    for name in sorted(modules(packages)):
        _try(name, outcomes)
        for imported in sorted(imports(name)):
            _try(imported, outcomes)
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    print(
        json.dumps(
            {
                "imports": outcomes,
                "surroundings": surroundings(),
                "loaded": sorted(filter(None, loaded)),
            }
        )
    )


def modules(packages: list[str]) -> Iterator[str]:
    """Yield all modules, except those that run something when they are imported."""
    for package in packages:
        yield package
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}.", onerror=lambda _name: None):
            if not found.name.endswith(".__main__"):
                yield found.name


def imports(name: str) -> Iterator[str]:
    """Yield everything that a module of the project imports: modules, and names that may be
    modules.
    """
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}:{alias.name}" for alias in node.names)


def _try(name: str, outcomes: dict[str, str]) -> None:
    """Import ``name``: a module, or MODULE:NAME for an attribute or a module of it."""
    if name in outcomes:
        return
    module, _, part = name.partition(":")
    try:
        imported = importlib.import_module(module)
        if part and not hasattr(imported, part):
            importlib.import_module(f"{module}.{part}")
    except Exception as error:  # noqa: BLE001 - whatever a package's code raises is the outcome
        outcomes[name] = f"{type(error).__name__}: {error}"
    else:
        outcomes[name] = ""


def surroundings() -> dict[str, object]:
    """Return properties of the system that Python depends on."""
    folder = Path(ssl.get_default_verify_paths().openssl_capath)
    return {
        "authorities": sum(path.is_file() for path in folder.iterdir()),
        "encoding": sys.getfilesystemencoding(),
        "hashes": sorted(hashlib.algorithms_available),
        "version": sys.version,
    }


main(sys.argv[1:])
