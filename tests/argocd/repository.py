"""A Git repository in a folder, with manifests that come and go."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

FOLDER = "streams"


class Repository:
    """One branch, ``main``; what is written is committed at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / FOLDER).mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        """As an Application names it."""
        return self._root.as_uri()

    @property
    def head(self) -> str:
        """The commit that is to be carried over."""
        return self._git("rev-parse", "HEAD").strip()

    def write(self, name: str, *bodies: dict[str, Any]) -> None:
        """The objects of one file."""
        self._path(name).write_text(yaml.safe_dump_all(bodies), "utf-8")
        self._commit(f"{name} is written")

    def remove(self, *names: str) -> None:
        """Files that are no more."""
        for name in names:
            self._path(name).unlink()
        self._commit(f"{', '.join(names)} removed")

    def _path(self, name: str) -> Path:
        return self._root / FOLDER / f"{name}.yaml"

    def _commit(self, message: str) -> None:
        self._git("add", "--all")
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
        self._git(*who, "commit", "--quiet", "--message", message)

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._root), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
