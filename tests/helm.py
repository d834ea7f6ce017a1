"""Helm, built once from its published module as the other programs are, and how tests run it."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tidemark_devcluster.toolchain.build import GoProgram, ensure_program
from tidemark_devcluster.toolchain.golang import GoVersion

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "tidemark"
BASE_CHART = ROOT / "charts" / "tidemark-base"
HELM = GoProgram(
    name="helm",
    version="v4.3.1",
    needs_go=GoVersion(1, 26, 0),
    packages=1300,
    package="helm.sh/helm/v4/cmd/helm",
)
TIMEOUT_S = 120


class HelmRefused(RuntimeError):
    """Helm ended with an error; the text is what it said."""


def ensure_helm() -> Path:
    """Helm's binary. Raises ToolchainError."""
    return ensure_program(HELM)


@dataclass(frozen=True, slots=True)
class Helm:
    """Helm with a home of its own; ``kubeconfig`` None for what needs no API server."""

    home: Path
    kubeconfig: Path | None = None
    timeout_s: float = TIMEOUT_S

    def run(self, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """Its standard output. Raises :class:`HelmRefused`."""
        given = ("--values", "-") if values is not None else ()
        done = subprocess.run(
            [str(ensure_helm()), *arguments, *given],
            input=json.dumps(values) if values is not None else "",
            capture_output=True,
            text=True,
            check=False,
            timeout=self.timeout_s,
            env=self.environment,
        )
        if done.returncode != 0:
            raise HelmRefused(done.stderr)
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Environment that isolates Helm from the configuration of the person who runs the
        tests.
        """
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith("HELM_")},
            **{f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")},
            "KUBECONFIG": str(self.kubeconfig or os.devnull),
        }

    def template(
        self, chart: Path, values: dict[str, Any] | None = None, *, namespace: str = "tidemark"
    ) -> list[dict[str, Any]]:
        """The objects of a release ``tidemark``, without those that ``helm test`` makes."""
        return self._rendered(chart, values, namespace, "--skip-tests")

    def template_of_test(
        self, chart: Path, values: dict[str, Any] | None = None, *, namespace: str = "tidemark"
    ) -> list[dict[str, Any]]:
        """Return the objects that ``helm test`` creates, in its order."""
        objects = self._rendered(chart, values, namespace)
        hooks = [body for body in objects if _annotation(body, "hook") == "test"]
        return sorted(hooks, key=lambda body: int(_annotation(body, "hook-weight")))

    def _rendered(
        self, chart: Path, values: dict[str, Any] | None, namespace: str, *more: str
    ) -> list[dict[str, Any]]:
        options = ("--namespace", namespace, "--kube-version", "1.36.0", *more)
        text = self.run("template", "tidemark", str(chart), *options, values=values or {})
        return [body for body in yaml.safe_load_all(text) if body is not None]


def _annotation(body: dict[str, Any], name: str) -> str:
    """Helm's own of that name."""
    return str((body["metadata"].get("annotations") or {}).get(f"helm.sh/{name}", ""))


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [body for body in objects if body["kind"] == kind]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one of that name."""
    (found,) = (body for body in of_kind(objects, kind) if body["metadata"]["name"] == name)
    return found
