"""The commands of the runbooks, read from their pages and run unchanged.

A shell runs them with a ``kubectl`` that uses the cluster of the run and finds our plugin, as on
the machine of an engineer on call.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.pods.commands import run
from e2e.pods.images import ROOT
from e2e.pods.objects import KEYS, STORE, STORE_PORT
from e2e.pods.stage import Stage

FOLDER = ROOT / "docs" / "runbooks"
#: Applications of ``tidemark_cli.main``, by their names on the PATH.
PROGRAMS = {"kubectl-tidemark": "plugin", "tidemark": "app"}
#: What stands for NAME, by the kind that it is a name of, and for what a Cluster says of its store.
NAMES = {"tmt": "orders", "tmb": "broker-1", "tmrd": "waits", "tmx": "alerts-export"}
STANDS_FOR = {"ENDPOINT": f"http://minio.{STORE}.svc:{STORE_PORT}", "BUCKETS": "tier"}
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"\b(tm\w+) NAME\b")


def commands(page: str) -> list[str]:
    """Return the commands of a page's diagnosis; those of its fix would change the cluster."""
    _, _, diagnosis = page.partition("\n## Diagnosis\n")
    diagnosis, _, _ = diagnosis.partition("\n## ")
    return [line for block in _BLOCK.findall(diagnosis) for line in block.splitlines() if line]


def named(command: str) -> str:
    """With the name of an object that there is."""
    command = _NAME.sub(lambda found: f"{found[1]} {NAMES[found[1]]}", command)
    for word, text in STANDS_FOR.items():
        command = command.replace(word, text)
    return command


def follow(stage: Stage, alerts: Sequence[str]) -> None:
    """Run the diagnosis of the alerts, each command once.

    Raises CommandFailed.
    """
    folder = _programs(stage.helm.home / "bin", " ".join(map(str, stage.kubernetes.program)))
    pages = [(FOLDER / f"{alert}.md").read_text("utf-8") for alert in alerts]
    # One command once, as several runbooks begin alike.
    for command in dict.fromkeys(line for page in pages for line in commands(page)):
        run(
            ["bash", "-o", "pipefail", "-c", named(command)],
            environment={
                **os.environ,
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "KUBECONFIG": str(stage.kubernetes.kubeconfig),
                "AWS_ACCESS_KEY_ID": KEYS["accessKeyId"],
                "AWS_SECRET_ACCESS_KEY": KEYS["secretAccessKey"],
            },
        )


def _programs(folder: Path, kubectl: str) -> Path:
    """A folder for the PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = {
        name: f'{sys.executable} -c "from tidemark_cli.main import {app}; {app}()"'
        for name, app in PROGRAMS.items()
    }
    for name, program in {"kubectl": kubectl, **ours}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {program} "$@"\n', encoding="utf-8")
        path.chmod(0o700)
    return folder
