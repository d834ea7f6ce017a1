"""Prometheus on the cluster of a run, queried through the API server."""

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.pods import objects
from e2e.pods.monitoring import pod, scraping
from e2e.pods.monitoring.fast_rules import hurried
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import Stage
from tests.helm import CHART, named, of_kind

INTERVAL_S = 2
#: As the values of a release say it that is watched; the release of a run is not changed for it.
METRICS = {
    "serviceMonitor": {"enabled": True, "topics": True},
    "rules": {"enabled": True},
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The one of a run."""

    stage: Stage

    def start(self) -> None:
        """With the targets and the rules that the chart's objects ask for. Raises Failed."""
        stage = self.stage
        # The chart is rendered with monitors, and the release itself is not changed.
        made = stage.helm.template(CHART, {**stage.values, "metrics": METRICS})
        jobs = scraping.jobs(of_kind(made, "ServiceMonitor"), INTERVAL_S)
        rules = named(made, "PrometheusRule", "tidemark-operator")["spec"]["groups"]
        stage.kubernetes.apply(objects.namespace(pod.MONITORING))
        stage.wait("the account of Prometheus' namespace", self._account)
        stage.kubernetes.apply(*pod.needed(jobs, hurried(rules), INTERVAL_S))
        stage.pod_ready(pod.MONITORING, pod.NAME)

    def stop(self) -> None:
        """Delete everything that :meth:`start` created, except for its namespace."""
        for namespace, kinds in (
            (pod.MONITORING, ("pod", "configmap", "serviceaccount")),
            (NAMESPACE, ("rolebinding", "role")),
        ):
            names = [f"{kind}/{pod.NAME}" for kind in kinds]
            self.stage.kubernetes.run("--namespace", namespace, "delete", *names)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of this moment. Raises CommandFailed."""
        asked = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self.get(f"api/v1/query?{asked}")["result"]
        return found

    def get(self, path: str) -> Mapping[str, Any]:
        """Return the API's response.

        Raises CommandFailed.
        """
        pods = f"/api/v1/namespaces/{pod.MONITORING}/pods/{pod.NAME}:{pod.PORT}/proxy"
        body = json.loads(self.stage.kubernetes.api.raw(f"{pods}/{path}"))
        found: Mapping[str, Any] = body["data"]
        return found

    def _account(self) -> str:
        there = self.stage.kubernetes.names(pod.MONITORING, "serviceaccounts")
        return "" if "default" in there else "no service account yet"
