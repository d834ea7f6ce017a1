"""Manifests as YAML, each under a comment that says what of its topic it does not have."""

import textwrap
from collections.abc import Iterable

import yaml

from tidemark_cli.imports.topics import Imported

_WIDTH = 100


def as_yaml(found: Iterable[Imported]) -> str:
    """One document for each, in their order."""
    return "".join(f"---\n{comment(each)}{body(each)}" for each in found)


def comment(each: Imported) -> str:
    """Where it comes from, and what was left out."""
    lines = [f"From {each.source}.", *(f"- {remark}" for remark in each.remarks)]
    return "".join(
        f"# {part}\n"
        for line in lines
        for part in textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent="  " if line.startswith("-") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def body(each: Imported) -> str:
    """In the order in which people write manifests."""
    return str(yaml.safe_dump(each.manifest, sort_keys=False, allow_unicode=True, width=_WIDTH))
