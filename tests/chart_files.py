"""``python -m tests.chart_files [--check]``: the files that ``charts/tidemark-base`` installs as
they stand.

The resource definitions of ``crds/`` and the policies of ``policies/`` are the source; a chart
cannot reach out of its folder, and so has a copy. A definition's copy is annotated so that Helm
leaves it where it is when a release ends: all objects of its kind would go with it. ``make crds``
writes them, ``make lint`` compares.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "charts" / "tidemark-base" / "files"
_METADATA = "\nmetadata:\n"
KEEP = "  annotations:\n    helm.sh/resource-policy: keep\n"


def render_all() -> dict[str, str]:
    """Every file's text, by its path in :data:`FOLDER`."""
    definitions = {
        f"crds/{path.name}": kept(path.read_text("utf-8"))
        for path in (ROOT / "crds").glob("*.yaml")
    }
    policies = {
        f"policies/{path.name}": path.read_text("utf-8")
        for path in (ROOT / "policies").glob("*.yaml")
    }
    return definitions | policies


def kept(definition: str) -> str:
    """A definition with the annotation. Raises ValueError where there is no place for it."""
    head, found, rest = definition.partition(_METADATA)
    if not found or rest.startswith("  annotations:"):
        raise ValueError("a definition begins with metadata, and has no annotations of its own")
    return head + found + KEEP + rest


def stale_files(folder: Path) -> list[str]:
    """What differs, is missing, or has no source."""
    rendered = render_all()
    found = {
        str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.yaml")
    }
    return sorted(
        name for name in rendered.keys() | found.keys() if rendered.get(name) != found.get(name)
    )


def write_all(folder: Path) -> None:
    """Write every file, and remove those without a source."""
    rendered = render_all()
    for name in stale_files(folder):
        if name in rendered:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(rendered[name], "utf-8")
        else:
            (folder / name).unlink()


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 where ``--check`` finds a difference."""
    if "--check" not in arguments:
        write_all(FOLDER)
        return 0
    stale = stale_files(FOLDER)
    if stale:
        sys.stderr.write(f"differ from their sources, run `make crds`: {', '.join(stale)}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
