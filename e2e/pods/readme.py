"""The README's installation on a real cluster, taken from its text and executed.

A shell runs exactly the six commands of the README in a folder that has the charts and
``my-values.yaml``. Only the example values that a reader replaces are replaced here: the file's
values (images, bucket, and sizes for one node: ``objects.values``), and the keys of the bucket.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from e2e.pods.commands import run
from e2e.pods.images import ROOT
from e2e.pods.kubernetes import Kubernetes
from tests.helm import Helm, ensure_helm

README = ROOT / "README.md"
HEADING = "## Install on a Kubernetes cluster"
VALUES_FILE = "my-values.yaml"
#: `helm test` gives up by itself after five minutes.
TIMEOUT_S = 360


def commands() -> list[str]:
    """The lines of the section's one block of commands."""
    return _block("sh").splitlines()


def values() -> dict[str, Any]:
    """Return the README's ``my-values.yaml``."""
    found = yaml.safe_load(_block("yaml"))
    assert isinstance(found, dict)
    return found


def _block(language: str) -> str:
    _, _, section = README.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")
    section = section.partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(found)


class Reader:
    """A reader at a shell with helm, kubectl, a kubeconfig and a checkout."""

    def __init__(
        self, folder: Path, helm: Helm, kubernetes: Kubernetes, keys: dict[str, str]
    ) -> None:
        """``keys``: the variables that the commands name."""
        folder.mkdir(parents=True)
        (folder / "charts").symlink_to(ROOT / "charts")
        programs = folder / "bin"
        programs.mkdir()
        # Programs by the names that the README uses, which know the run's cluster.
        for name, words in (
            ("helm", [str(ensure_helm())]),
            ("kubectl", [*kubernetes.program, "--kubeconfig", str(kubernetes.kubeconfig)]),
        ):
            program = programs / name
            quoted = " ".join(f"'{word}'" for word in words)
            program.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self._environment = {**helm.environment, **keys, "PATH": path}
        self._folder = folder

    def writes(self, values: dict[str, Any]) -> None:
        """The file that the commands name."""
        text = yaml.safe_dump(values)
        (self._folder / VALUES_FILE).write_text(text, encoding="utf-8")

    def types(self, command: str) -> str:
        """Run a command and return its output.

        Raises CommandFailed.
        """
        return run(
            ["bash", "-euc", command],
            environment=self._environment,
            folder=self._folder,
            timeout_s=TIMEOUT_S,
        )
