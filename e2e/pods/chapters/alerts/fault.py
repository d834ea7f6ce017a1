"""One thing that goes wrong, the alerts that it must raise, and how a step tells of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from e2e.pods.chapters.alerts import runbooks
from e2e.pods.chapters.chapter import Step
from e2e.pods.monitoring.watching import Prometheus
from e2e.pods.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its alerts.

    ``caused``: context manager that causes the fault; at its end the fault is repaired, and all
    dependents are healthy. ``beside_pods``: see :class:`Step`.
    """

    what: str
    alerts: tuple[str, ...]
    caused: Callable[[Stage], AbstractContextManager[None]]
    beside_pods: bool = False

    def step(self) -> Step:
        """Return the step that causes the fault, waits for its alerts and runs the commands of
        their runbooks.
        """
        return Step(f"{self.what}: {', '.join(self.alerts)}", self._take, self.beside_pods)

    def _take(self, stage: Stage) -> None:
        prometheus = Prometheus(stage)
        # An alert that already fires would prove nothing.
        stage.wait("silence before", lambda: ", ".join(sorted(set(self.alerts) & any_(prometheus))))
        fired: set[str] = set()

        # Alerts may fire at different times, so each is remembered once it did.
        def complaint() -> str:
            now = alerts(prometheus)
            fired.update(item["labels"]["alertname"] for item in now if item["state"] == "firing")
            missing = sorted(set(self.alerts) - fired)
            said = sorted({f"{item['labels']['alertname']} {item['state']}" for item in now})
            return f"{', '.join(missing)} did not; {', '.join(said)}" if missing else ""

        with self.caused(stage):
            stage.wait("alerts to fire", complaint)
            stage.progress.say("all fire; what their runbooks say is typed")
            # The runbooks' commands have to work while the cluster is in trouble.
            runbooks.follow(stage, self.alerts)
            stage.progress.say("the cause goes")


def alerts(prometheus: Prometheus) -> list[dict[str, Any]]:
    """Those that fire, or will unless something changes."""
    found: list[dict[str, Any]] = prometheus.get("api/v1/alerts")["alerts"]
    return found


def any_(prometheus: Prometheus) -> set[str]:
    """Return the names of all firing alerts."""
    return {alert["labels"]["alertname"] for alert in alerts(prometheus)}
