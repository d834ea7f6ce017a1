"""``python -m tools.chart_files [--check] FOLDER``: what ``charts/tidemark-base`` installs as it
stands.

The resource definitions of ``crds/`` and the policies of ``policies/`` are the source; a chart
cannot reach out of its folder, and so has a copy. A definition's copy is annotated so that Helm
leaves it where it is when a release ends: all objects of its kind would go with it. ``make crds``
writes them, ``make lint`` compares.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark.generated import command

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "charts" / "tidemark-base" / "files"
_METADATA = "\nmetadata:\n"
KEEP = "  annotations:\n    helm.sh/resource-policy: keep\n"


def render_all() -> dict[str, str]:
    """Every file's text, by its path in the folder."""
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
    # A second annotations block would replace the first one without an error.
    if not found or rest.startswith("  annotations:"):
        raise ValueError("a definition begins with metadata, and has no annotations of its own")
    return head + found + KEEP + rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 where ``--check`` finds a difference."""
    return command(
        lambda folder: {folder / name: text for name, text in render_all().items()},
        "make crds",
        arguments,
        owned="*.yaml",
    )


if __name__ == "__main__":
    sys.exit(main())
