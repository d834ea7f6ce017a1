"""NetworkPolicies hold: who is not named by them reaches nothing that they close.

Three pods that are no brokers try every port of operators and brokers: a stranger in another
namespace, the client, and a bystander in the client's namespace. Without policies all of them get
through, or the rest would prove nothing.
"""

from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.chapters.install import TOPIC
from e2e.pods.objects import NAMESPACE, STORE, STORE_PORT
from e2e.pods.progress import Failed
from e2e.pods.stage import Stage

Pod = tuple[str, str]
PROBE = Path(__file__).parents[1] / "probe_program.py"
TIERED, TIERED_RECORDS = "guarded", 6000
COPIED = "kafka_server_brokertopicmetrics_remotecopybytes_total"
ELSEWHERE = "elsewhere"
STRANGER, BYSTANDER = (ELSEWHERE, "stranger"), (NAMESPACE, "bystander")
CLIENT = (NAMESPACE, "client")
OBJECT_STORE = f"minio.{STORE}.svc:{STORE_PORT}"
LISTENER, REPLICATION, CONTROL, METRICS = "l-plaintext", "replication", "control", "metrics"
EVERY_PORT = frozenset({LISTENER, REPLICATION, CONTROL, METRICS})
#: Of the chart, where nothing is said.
OF_THE_NAMESPACE = EVERY_PORT - {REPLICATION}
BROKERS_REACH = frozenset({CONTROL, REPLICATION})
#: Only brokers to the control port, only the client to listeners, and only another namespace to the
#: metrics.
NAMED: Mapping[str, Any] = {
    "controlFrom": [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "tidemark-broker"}}}
    ],
    "clientsFrom": [{"podSelector": {"matchLabels": {"app": CLIENT[1]}}}],
    "metricsFrom": [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ELSEWHERE}}}
    ],
}


def _without(stage: Stage) -> None:
    stage.kubernetes.apply(objects.namespace(ELSEWHERE))
    stage.account(ELSEWHERE)
    for where, name in (STRANGER, BYSTANDER):
        stage.kubernetes.apply(objects.client(name, where))
        stage.pod_ready(where, name)
    # The control: everything is reachable without policies.
    _install(stage, {"enabled": False})
    _reach(stage, dict.fromkeys((STRANGER, BYSTANDER, CLIENT), EVERY_PORT))


def _as_installed(stage: Stage) -> None:
    _install(stage, {})
    _reach(
        stage,
        {STRANGER: {METRICS}, BYSTANDER: OF_THE_NAMESPACE, CLIENT: OF_THE_NAMESPACE},
    )


def _named(stage: Stage) -> None:
    _install(stage, NAMED)
    # Peers by name: the stranger may only read metrics, the client only the listener.
    _reach(stage, {STRANGER: {METRICS}, BYSTANDER: set(), CLIENT: {LISTENER}})
    stage.produce(TOPIC)
    stage.consume(TOPIC)


def _brokers(stage: Stage) -> None:
    """Check brokers with new connections, because policies do not apply to existing ones."""
    brokers = [(NAMESPACE, name) for name in stage.broker_pods()]
    _reach(stage, dict.fromkeys(brokers, BROKERS_REACH))
    for name in stage.broker_pods():
        if not stage.python((NAMESPACE, name), PROBE, OBJECT_STORE):
            raise Failed(f"{name} does not reach the object store")
    # A new pod has no connections from before the policies.
    stage.replace("broker-1-0")
    stage.recovered()
    before = _copied(stage)
    stage.make_tiered_topic(TIERED)
    stage.produce(TIERED, TIERED_RECORDS)
    stage.wait(
        "segments in the tier",
        lambda: "" if _copied(stage) > before else f"{before:.0f} bytes are copied, as before",
    )


def _copied(stage: Stage) -> float:
    return sum(stage.metric(name, COPIED) for name in stage.broker_pods())


def _as_before(stage: Stage) -> None:
    for where, name in (STRANGER, BYSTANDER):
        stage.kubernetes.run("--namespace", where, "delete", "pod", name)
    stage.kubernetes.run("delete", "namespace", ELSEWHERE)
    _install(stage, {})
    stage.recovered()


def _install(stage: Stage, policies: Mapping[str, Any]) -> None:
    stage.values["networkPolicy"] = dict(policies)
    stage.install()


def _reach(stage: Stage, wanted: Mapping[Pod, Set[str]]) -> None:
    """Each pod just these ports. All ask at the same time: a packet that is dropped is waited for.
    Raises Failed."""
    with ThreadPoolExecutor(len(wanted)) as beside:
        asked = [beside.submit(_reaches, stage, pod, names) for pod, names in wanted.items()]
    for item in asked:
        item.result()


def _reaches(stage: Stage, pod: Pod, names: Set[str]) -> None:
    """Check that a pod reaches exactly the named ports of all other operators and brokers.

    Raises Failed.
    """
    # Every port of every other pod. A pod reaches its own ports in any case.
    doors = {
        address: name
        for operator_pod in (*stage.operator_pods(), *stage.broker_pods())
        if operator_pod != pod[1]
        for name, address in stage.ports(operator_pod).items()
    }
    # Every other port has to be unreachable, so both kinds of deviation are reported.
    wanted = {address for address, name in doors.items() if name in names}

    def complaint() -> str:
        found = set(stage.python(pod, PROBE, *doors).split())
        return ", ".join(
            f"{'does not reach' if address in wanted else 'reaches'} {doors[address]} ({address})"
            for address in sorted(found ^ wanted)
        )

    stage.wait(f"what {'/'.join(pod)} reaches", complaint)


CHAPTER = Chapter(
    "network",
    "NetworkPolicies keep out whom they do not name",
    (
        Step("without policies every pod reaches every port", _without),
        Step("with the chart's, another namespace reaches nothing but metrics", _as_installed),
        Step("with peers by name, only they get through", _named),
        Step("brokers reach operators, each other and the store all the same", _brokers),
        Step("all is as it was", _as_before),
    ),
    takes_s=53,
)
