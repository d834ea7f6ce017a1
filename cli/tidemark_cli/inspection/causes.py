"""Causes and remedies of one object's findings: the decisions of ``tidemark why``."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.verdict import OPERATOR, SILENT, HealthFinding, Severity
from tidemark_kube.client import LEASE_NAME
from tidemark_operator.resources.names import GROUP, PLURALS

#: Short names of kubectl, as in ``kubectl get tmt``.
_SHORT = {
    "tmc": "Cluster",
    "tmb": "Broker",
    "tmt": "Topic",
    "tmu": "User",
    "tmx": "Export",
    "tmrd": "RecordDeletion",
}


class UnknownReference(LookupError):
    """Text that names no object; the message says what to write."""


def resolve(snapshot: ClusterSnapshot, text: str) -> tuple[str, str]:
    """Return kind and name of the object that ``text`` names for ``tidemark why``.

    Accepted forms are ``topic/orders``, ``topics.tidemark.dev/orders`` and ``tmt/orders``. A topic
    may have its name in Kafka. Raises :class:`UnknownReference`.
    """
    prefix, slash, name = text.partition("/")
    kind = _kind_of(prefix)
    if not slash or not name or kind is None:
        kinds = ", ".join(known.lower() for known in (OPERATOR, *_SHORT.values()))
        raise UnknownReference(f"{text!r} is not KIND/NAME, such as topic/orders; kinds: {kinds}")
    if kind == OPERATOR:
        return OPERATOR, LEASE_NAME
    # Clients know a topic by its name in Kafka, which may differ from the object's.
    names = {body["metadata"]["name"] for found, body in snapshot.objects() if found == kind}
    if kind == "Topic" and name not in names:
        named = (topic.name for topic in snapshot.topics if topic.kafka_name == name)
        name = next(named, name)
    if name not in names:
        known = ", ".join(sorted(names)[:5]) or "none"
        raise UnknownReference(f"there is no {kind.lower()} {name!r}; there are: {known}")
    return kind, name


def _kind_of(prefix: str) -> str | None:
    word = prefix.lower().removesuffix(f".{GROUP}")
    if word in _SHORT:
        return _SHORT[word]
    if word == OPERATOR.lower():
        return OPERATOR
    for kind, plural in PLURALS.items():
        if word in (kind.lower(), plural) and kind in _SHORT.values():
            return kind
    return None


def chain(
    snapshot: ClusterSnapshot, found: Sequence[HealthFinding], kind: str, name: str
) -> list[HealthFinding]:
    """Return the findings of other objects that explain those of one object, causes first.

    Only what the object depends on is included: the brokers of a topic's replicas, the topic of an
    export, the Cluster and the operator of everything.
    """
    objects = set(_depends_on(snapshot, kind, name))
    return [item for item in found if (item.kind, item.name) in objects]


def of_topics(
    snapshot: ClusterSnapshot, found: Sequence[HealthFinding], topics: Collection[str]
) -> list[HealthFinding]:
    """Return the findings of topics (object names), of what uses them, and of their causes."""
    objects = {("Topic", name) for name in topics}
    for kind, bodies in (("Export", snapshot.exports), ("RecordDeletion", snapshot.deletions)):
        for body in bodies:
            if not _topics_of(body).isdisjoint(topics):
                objects.add((kind, str(body["metadata"]["name"])))
    for name in topics:
        objects.update(_depends_on(snapshot, "Topic", name))
    return [item for item in found if (item.kind, item.name) in objects]


def _depends_on(snapshot: ClusterSnapshot, kind: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each object whose problem can cause one of this object."""
    if kind == OPERATOR:
        return
    # Every object depends on the operator, and all but the Cluster itself on the Cluster.
    yield OPERATOR, LEASE_NAME
    if kind == "Cluster":
        return
    yield from (("Cluster", body["metadata"]["name"]) for body in snapshot.clusters)
    # Exports and record deletions also depend on their topic and its brokers.
    if kind in ("Export", "RecordDeletion"):
        bodies = snapshot.exports if kind == "Export" else snapshot.deletions
        (body,) = (body for body in bodies if body["metadata"]["name"] == name)
        for topic in _topics_of(body):
            yield "Topic", topic
            yield from _brokers_of(snapshot, topic)
    if kind == "Topic":
        yield from _brokers_of(snapshot, name)


def _topics_of(body: Mapping[str, Any]) -> set[str]:
    """Return the topics that an Export or RecordDeletion names. Patterns match none here: the
    status of such an Export names its failing topics."""
    spec = body["spec"]
    if "topicRef" in spec:
        return {str(spec["topicRef"]["name"])}
    return set(spec.get("topics", {}).get("names", ()))


def _brokers_of(snapshot: ClusterSnapshot, topic: str) -> Iterator[tuple[str, str]]:
    rows = [row for item in snapshot.topics if item.name == topic for row in item.rows]
    node_ids = {replica for row in rows for replica in row.replicas}
    for broker in snapshot.brokers:
        # A topic without rows may wait for any broker, for example to be placed.
        if not rows or broker["spec"]["nodeId"] in node_ids:
            yield "Broker", str(broker["metadata"]["name"])


def root(own: Sequence[HealthFinding], others: Sequence[HealthFinding]) -> HealthFinding | None:
    """Return the finding to remedy first: of another object if that is a problem, else its own."""
    problems = [item for item in (*others, *own) if item.severity is Severity.PROBLEM]
    return next(iter((*problems, *others, *own)), None)


def command(
    snapshot: ClusterSnapshot, finding: HealthFinding, namespace: str, *, is_local: bool
) -> str:
    """Return a shell command to copy: a finding's remedy, or a command that shows more.

    ``is_local``: the cluster was started by ``tidemark up``, so ``tidemark`` can start its
    processes.
    """
    # The plugin's user has kubectl's context, but not always its namespace.
    kubectl = "tidemark kubectl" if is_local else f"kubectl --namespace {namespace}"
    if finding.kind == OPERATOR:
        if is_local:
            return "tidemark up --detach"
        return f"{kubectl} get pods --selector app.kubernetes.io/name=tidemark-operator"
    if finding.kind == "Broker" and finding.reason in SILENT:
        node_id = _node_id(snapshot, finding.name)
        if is_local:
            return f"tidemark broker start {node_id}"
        return f"{kubectl} logs {finding.name}-0 --tail 50"
    if finding.reason in ("BrokersMissing", "Placeholders") and is_local:
        return "tidemark broker add"
    return f"{kubectl} describe {PLURALS[finding.kind]}.{GROUP} {finding.name}"


def _node_id(snapshot: ClusterSnapshot, name: str) -> int:
    (broker,) = (body for body in snapshot.brokers if body["metadata"]["name"] == name)
    return int(broker["spec"]["nodeId"])


def events_of(events: Sequence[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    """Return the Events of one object, oldest first."""
    return [
        event
        for event in events
        if event["involvedObject"].get("kind") == kind
        and event["involvedObject"].get("name") == name
    ]
