"""A Prometheus in a pod discovers every page through the chart's monitors and has every required
metric.

Its targets come from the API server by the labels and port names of the ServiceMonitors that the
chart renders. A monitor that does not match leaves a page without a target.
"""

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.chapters.install import TOPIC
from e2e.pods.images import PROMETHEUS
from e2e.pods.kubernetes import condition
from e2e.pods.monitoring.watching import Prometheus
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import OPERATOR, OPERATORS, Stage
from tests.monitoring.promql_queries import has_data, queries
from tidemark.metrics import broker_table, operator_table, process_table, tier_table, topic_table
from tidemark.metrics.metric import Metric, MetricType

SECOND = "name-taken"
ROWS: tuple[Metric, ...] = (
    *operator_table.ALL,
    *broker_table.ALL,
    *tier_table.ALL,
    *topic_table.ALL,
    *process_table.ALL,
)


def _scraped(stage: Stage) -> None:
    prometheus = Prometheus(stage)
    prometheus.start()
    stage.wait("every page to be scraped", lambda: _pages_complaint(stage, prometheus))


def pages(stage: Stage) -> set[tuple[str, str]]:
    """Pod and path of each page that there is."""
    operators = [f"{OPERATOR}-{number}" for number in range(OPERATORS)]
    brokers = [f"broker-{number}-0" for number in range(1, stage.brokers + 1)]
    return {
        *((pod, "/metrics") for pod in (*operators, *brokers)),
        *((pod, "/metrics/topics") for pod in brokers),
    }


def _pages_complaint(stage: Stage, prometheus: Prometheus) -> str:
    """Return which pages have no target. The operators' only page has no label with its path."""
    # Discovered by the chart's monitors: a wrong label or port name leaves a page out.
    targets = prometheus.get("api/v1/targets?state=active")["activeTargets"]
    up = {
        (target["labels"].get("pod", ""), target["labels"].get("metrics_path", "/metrics"))
        for target in targets
        if target["health"] == "up"
    }
    wrong = sorted(pages(stage) ^ up)
    said = [
        f"{target['scrapeUrl']}: {target['lastError'] or target['health']}" for target in targets
    ]
    return f"{wrong} of {'; '.join(said)}" if wrong or len(targets) != len(up) else ""


def _has_all(stage: Stage) -> None:
    """Check that every metric exists.

    A Topic whose name is taken provides those that only errors produce.
    """
    prometheus = Prometheus(stage)
    stage.kubernetes.apply(
        objects.topic(SECOND, topicName=TOPIC, partitions=1, replicationFactor=1)
    )
    stage.wait("a Topic that waits for a user", lambda: _not_stalled(stage))
    stage.produce(TOPIC)
    stage.consume(TOPIC)
    # Every row and every query has to return data at least once, in any order.
    left = {row.name: _shown(row) for row in ROWS} | dict(queries(TOPIC))

    def complaint() -> str:
        for name in list(left):
            if has_data(prometheus.query, left[name]):
                del left[name]
            else:
                return f"{len(left)} have none, such as {name}: {left[name]}"
        return ""

    stage.wait("data for every metric and every query", complaint)
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "topics.tidemark.dev", SECOND)


def _shown(row: Metric) -> str:
    return f"{row.name}_count" if row.kind is MetricType.HISTOGRAM else row.name


def _not_stalled(stage: Stage) -> str:
    found = condition(stage.topic(SECOND), "Stalled")
    return "" if found.get("status") == "True" else str(found)


def _quiet(stage: Stage) -> None:
    prometheus = Prometheus(stage)

    def complaint() -> str:
        groups = prometheus.get("api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        ill = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if _is_ill(rule)]
        return ", ".join(ill)

    stage.wait("rules that are taken, and alerts that are silent", complaint)
    prometheus.stop()


def _is_ill(rule: dict[str, str]) -> bool:
    return rule["health"] != "ok" or rule.get("state", "inactive") != "inactive"


CHAPTER = Chapter(
    "metrics",
    "a Prometheus finds every page by the chart's monitors, and has every required metric",
    (
        Step("every page of operators and brokers is found by the monitors and scraped", _scraped),
        Step("every metric of the table and every query of the dashboards has data", _has_all),
        Step("every rule is taken, and no alert stays in an installation that is well", _quiet),
    ),
    takes_s=22,
    images=(PROMETHEUS,),
)
