"""Parse versions of Go and of modules from text; pure.

A module's ``go`` line is the lowest version that may build it. A release candidate (``go1.26rc2``)
is older than the release and counts as too old.
"""

import re
from typing import NamedTuple

from tidemark_devcluster.toolchain.errors import ToolchainError


class GoVersion(NamedTuple):
    """Released version of Go, e.g. 1.26.3; a missing patch number is 0."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_RELEASE = re.compile(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?(?![\w.])")
_GO_LINE = re.compile(r"^go\s+(\d+)\.(\d+)(?:\.(\d+))?\s*(?://.*)?$", re.MULTILINE)


def parse_go_version(text: str) -> GoVersion | None:
    """Return the version in the output of ``go version``; None for a development or candidate
    build.
    """
    match = None if " devel " in text else _RELEASE.search(text)
    return _version(match) if match else None


def required_go(go_mod: str) -> GoVersion:
    """Return the lowest Go version that a ``go.mod`` accepts, from its ``go`` line."""
    match = _GO_LINE.search(go_mod)
    if match is None:
        raise ToolchainError("go.mod has no go line, so the required Go version is unknown")
    return _version(match)


def required_module(go_mod: str, module: str) -> str:
    """Return the version at which a ``go.mod`` requires ``module``, e.g. ``v1.36.3``."""
    match = re.search(rf"^\s*(?:require\s+)?{re.escape(module)}\s+(v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise ToolchainError(f"go.mod does not require {module}")
    return match.group(1)


def _version(match: re.Match[str]) -> GoVersion:
    major, minor, patch = match.groups()
    return GoVersion(int(major), int(minor), int(patch or 0))
