"""Check of a built image: the program's imports there, compared with those in the full image.

An import that fails in the full image (a package that brokers do not use, a module for another
system) must fail in the same way in the built image, and no other import may fail.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tools.images.runtime import SEARCHED, USER

_TRIAL = Path(__file__).with_name("import_probe.py")
SHOWN = 20


class TrialFailed(Exception):
    """The check failed. The message has Python's output, or the differences."""


@dataclass(frozen=True, slots=True)
class ImageCheckResult:
    """Result of the imports.

    ``imports``: error of each module's import, or "". ``loaded``: files below the folder of the
    packages. ``surroundings``: properties of the system.
    """

    imports: Mapping[str, str]
    surroundings: Mapping[str, Any]
    loaded: frozenset[str]

    @classmethod
    def here(cls, packages: Path, names: Sequence[str]) -> Self:
        """Run the imports in this image. Raises TrialFailed."""
        return cls._of(_run(sys.executable, names, packages), packages)

    @classmethod
    def inside(cls, root: Path, packages: Path, names: Sequence[str]) -> Self:
        """Run the imports in the tree at ``root``, as the image's user and with its path.

        Raises TrialFailed.
        """
        return cls._of(_run("python3", names, packages, root), packages)

    @classmethod
    def _of(cls, text: str, packages: Path) -> Self:
        parts = json.loads(text)
        folder = f"{packages}/"
        loaded = {path.removeprefix(folder) for path in parts["loaded"] if path.startswith(folder)}
        return cls(parts["imports"], parts["surroundings"], frozenset(loaded))

    def differences(self, other: Self) -> list[str]:
        """Return the differences between this result and ``other``, a line for each."""
        return [
            f"{name}: {theirs or 'nothing'} (before: {ours or 'nothing'})"
            for before, after in (
                (self.imports, other.imports),
                (self.surroundings, other.surroundings),
            )
            for name in sorted({*before, *after})
            for ours, theirs in [(before.get(name), after.get(name))]
            if ours != theirs
        ]


def _run(python: str, names: Sequence[str], packages: Path, root: Path | None = None) -> str:
    # The built image starts without the environment of the build.
    environment = {} if root else {**os.environ}
    environment |= {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    if root:
        environment["PATH"] = SEARCHED

    def enter() -> None:
        if root:
            os.chroot(root)
            os.chdir("/")
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)

    # A process of its own: only there can chroot and user change without affecting the build.
    command = [python, "-c", _TRIAL.read_text("utf-8"), *names]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, preexec_fn=enter
        )
    except OSError as error:
        raise TrialFailed(f"{python} does not start in the built image: {error}") from error
    except subprocess.SubprocessError as error:
        raise TrialFailed(f"this build may not chroot, or not become user {USER}") from error
    if done.returncode:
        raise TrialFailed(done.stderr or f"{python} ended with {done.returncode}")
    return done.stdout
