"""Write manifests as YAML, each with a comment about the source and what was left out."""

import textwrap
from collections.abc import Iterable

import yaml

from tidemark_cli.imports.topics import ImportedManifest

_WIDTH = 100


def as_yaml(topics: Iterable[ImportedManifest]) -> str:
    """Return one document for each topic, in their order."""
    return "".join(f"---\n{comment(topic)}{body(topic)}" for topic in topics)


def comment(topic: ImportedManifest) -> str:
    """Return the comment with a manifest's source and remarks."""
    lines = [f"From {topic.source}.", *(f"- {remark}" for remark in topic.remarks)]
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


def body(topic: ImportedManifest) -> str:
    """Return the manifest in its own key order, which is the conventional one."""
    return str(yaml.safe_dump(topic.manifest, sort_keys=False, allow_unicode=True, width=_WIDTH))
