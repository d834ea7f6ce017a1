"""Write manifests as YAML, each with a comment: the source, what was left out, commands to run."""

import textwrap
from collections.abc import Iterable

import yaml

from tidemark_cli.imports.strimzi_listeners import EquivalentValues
from tidemark_cli.imports.topics import ImportedManifest

_WIDTH = 100


def as_yaml(manifests: Iterable[ImportedManifest]) -> str:
    """Return one document for each manifest, in their order."""
    return "".join(f"---\n{comment(manifest)}{body(manifest)}" for manifest in manifests)


def comment(manifest: ImportedManifest) -> str:
    """Return the comment with a manifest's source, remarks and commands.

    Commands are not wrapped, so that they can be copied.
    """
    text = _wrapped([f"From {manifest.source}.", *(f"- {item}" for item in manifest.remarks)])
    return text + "".join(f"#   {command}\n" for command in manifest.commands)


def values_comment(values: EquivalentValues) -> str:
    """Return values of the chart as a comment, since brokers are not created by this file."""
    text = _wrapped(
        [
            f"From {values.source}: values of the Helm chart for brokers with these listeners.",
            *(f"- {remark}" for remark in values.remarks),
        ]
    )
    body = yaml.safe_dump(values.values, sort_keys=False, width=_WIDTH)
    return text + "".join(f"#   {line}\n" for line in body.splitlines())


def _wrapped(lines: Iterable[str]) -> str:
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


def body(manifest: ImportedManifest) -> str:
    """Return the manifest in its own key order, which is the conventional one."""
    return str(yaml.safe_dump(manifest.manifest, sort_keys=False, allow_unicode=True, width=_WIDTH))
