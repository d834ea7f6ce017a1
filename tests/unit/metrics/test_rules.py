"""Alerts query existing metrics, and each has a complete runbook."""

import re
from pathlib import Path

import pytest
import yaml

from tests.monitoring.rules import ROOT, alerts, metrics_in, recorded, rules
from tidemark.metrics import broker_table, operator_table, tier_table, topic_table
from tidemark.metrics.metric import Metric
from tidemark.reason_table import TABLE
from tidemark_cli.main import Commands, PluginCommands
from tidemark_operator.reconcile.state_metrics import _WRONG
from tidemark_operator.resources.kinds import KINDS

RUNBOOKS = ROOT / "docs" / "runbooks"
TABLES = (broker_table, operator_table, tier_table, topic_table)
ROWS: dict[str, Metric] = {row.name: row for table in TABLES for row in table.ALL}
#: Labels that Prometheus adds to a metric's own.
OF_TARGETS = {"namespace", "pod", "le"}
#: Resources of Kubernetes itself that runbooks use.
OF_KUBERNETES = {
    "pods",
    "pod",
    "lease",
    "secret",
    "secrets",
    "services",
    "statefulset",
    "pvc",
    "jobs",
}
TIDEMARK_RESOURCES = {
    name for kind in KINDS for name in (*kind.short_names, f"{kind.plural}.tidemark.dev")
}
NAMES = list(alerts())


@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_a_rule_queries_only_existing_metrics(rule: dict[str, str]) -> None:
    expression = rule["expr"]
    queried = metrics_in(expression)
    assert queried <= ROWS.keys()
    assert set(re.findall(r"\b\w+:\w+:\w+\b", expression)) <= recorded()
    known = OF_TARGETS.union(*(ROWS[name].label_names for name in queried))
    used = re.findall(r"by \(([^)]*)\)", expression)
    if queried:
        assert {label.strip() for labels in used for label in labels.split(",")} <= known


def test_every_selector_is_restricted_to_the_namespace() -> None:
    for rule in rules():
        named = re.findall(r"\b[a-z]+(?:_\w+|:\w+:\w+)(\{)", rule["expr"])
        assert len(named) == rule["expr"].count('{namespace="tidemark"'), rule


#: Reasons that no counted condition shows, and the alert for each; "" if nothing is wrong.
OTHERWISE = {
    ("Topic", "Pending"): "TidemarkNoOperatorLeads",
    ("Topic", "Stalled"): "TidemarkObjectStalled",
    ("Topic", "Paused"): "",
    ("Topic", "DeletionPending"): "",
    ("Topic", "Disabled"): "",
    ("Topic", "NotAudited"): "",
    ("Topic", "AuditOutdated"): "",
    ("Topic", "MinInsyncReplicasTooHigh"): "",
    ("Broker", "ReplicasFailed"): "TidemarkStorageFails",
    ("Broker", "RemoteStorageUnavailable"): "TidemarkTierUnavailable",
    ("Broker", "Drained"): "",
    ("RecordDeletion", "Pending"): "TidemarkNoOperatorLeads",
    ("RecordDeletion", "Resolving"): "TidemarkRecordDeletionStuck",
    ("RecordDeletion", "Deleting"): "TidemarkRecordDeletionStuck",
    ("RecordDeletion", "TopicNotFound"): "TidemarkRecordDeletionStuck",
    ("RecordDeletion", "TopicNotReady"): "TidemarkRecordDeletionStuck",
    ("RecordDeletion", "PartitionsOffline"): "TidemarkRecordDeletionStuck",
    ("User", "Pending"): "TidemarkNoOperatorLeads",
    ("Export", "Pending"): "TidemarkNoOperatorLeads",
    ("Topic, with engine kafka", "ReassignmentInProgress"): "",
}


#: Alerts about each condition that is counted.
BY_CONDITION = {
    "Ready": ("TidemarkObjectNotReady", "TidemarkBrokerFenced", "TidemarkStorageFails"),
    "Succeeded": ("TidemarkRecordDeletionFailed",),
    "Stalled": (
        "TidemarkObjectStalled",
        "TidemarkDecisionsNotStored",
        "TidemarkDisablementStalled",
        "TidemarkTakeoverFails",
        "TidemarkExportFails",
    ),
    "Exporting": ("TidemarkExportBehind",),
    "Maintained": ("TidemarkTableMaintenanceFails",),
    "Draining": ("TidemarkDrainStuck",),
    "ExternalAddress": ("TidemarkExternalAddressMissing",),
    "ObjectsAccepted": ("TidemarkCreationsRefused",),
    "FullyReplicated": ("TidemarkPartitionsUnderReplicated", "TidemarkPlaceholders"),
    "PodUpToDate": ("TidemarkPodNotUpToDate",),
    "RemoteStorageReady": ("TidemarkTierUnavailable",),
    "RemoteIntegrity": ("TidemarkAuditFoundDamage",),
    "TierIntegrity": ("TidemarkTierDamaged",),
    "TierSwept": ("TidemarkTierOrphans",),
    "TieringLagging": ("TidemarkTieringLagging",),
    "TieringSettled": ("TidemarkTierPartitionInError", "TidemarkTierCopiesFail"),
}


def test_every_actionable_state_has_an_alert() -> None:
    """Every actionable reason of docs/reference/conditions.md has a count and an alert."""
    assert {name for name, _ in _WRONG} == BY_CONDITION.keys()
    assert {alert for named in BY_CONDITION.values() for alert in named} <= alerts().keys()
    uncounted = {}
    for kind, reasons in TABLE.items():
        for reason, entry in reasons.items():
            shown = set(re.findall(r"(\w+)=(\w+)", entry.conditions))
            # Reasons with nothing to do, and those that a counted condition shows, need no
            # exception.
            if entry.action not in ("Nothing to do.", "Wait.") and not shown & _WRONG.keys():
                uncounted[kind, reason] = entry.conditions
    assert uncounted.keys() == OTHERWISE.keys()
    assert set(filter(None, OTHERWISE.values())) <= alerts().keys()


def test_reasons_that_alerts_name_are_given() -> None:
    reasons = {reason for reasons in TABLE.values() for reason in reasons}
    for rule in rules():
        for pattern in re.findall(r'reason!?=~?"([^"]+)"', rule["expr"]):
            for name in pattern.split("|"):
                assert any(re.fullmatch(name, reason) for reason in reasons), name


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_severity_and_a_description(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"


def test_every_alert_has_a_runbook_and_is_in_the_list() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"index"}
    assert pages == set(NAMES)
    listed = re.findall(
        r"(?m)^\| \[(\w+)\]\(\1\.md\) \| (\w+) \| (\w+) \| (.+) \|$", _text("index")
    )
    assert listed == [
        (
            name,
            rule["labels"]["severity"],
            rule.get("for", "0m"),
            rule["annotations"]["description"],
        )
        for name, rule in alerts().items()
    ]


def _text(name: str) -> str:
    return (RUNBOOKS / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_runbooks_have_the_same_sections(name: str) -> None:
    titles = re.findall(r"(?m)^#+ (.+)$", _text(name))
    assert titles == [name, "Trigger", "Impact", "Diagnosis", "Fix", "Resolved when"]


@pytest.mark.parametrize("name", NAMES)
def test_runbook_states_severity_and_duration_of_its_rule(name: str) -> None:
    rule = alerts()[name]
    found = re.search(
        r"## Trigger\n\nSeverity `(\w+)`\. Fires (?:at once|after (\d+) (minute|hour|day)s?):",
        _text(name),
    )
    assert found is not None
    duration = found[2] + found[3][0] if found[2] else "0m"
    assert (found[1], duration) == (rule["labels"]["severity"], rule.get("for", "0m"))


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_a_runbook_exist(name: str) -> None:
    blocks = re.findall(r"(?ms)^ *```sh\n(.*?)^ *```", _text(name))
    inline = re.findall(r"`((?:kubectl|tidemark) [^`]+)`", _text(name))
    commands = [line.strip() for line in (*"".join(blocks).splitlines(), *inline)]
    assert commands
    programs = {"tidemark": Commands.rows, "kubectl tidemark": PluginCommands.rows}
    for command in commands:
        words = command.removeprefix("kubectl ").split(" ")
        if words[0] == "tidemark":
            program, _, _ = command.partition(f" {words[1]}")
            assert words[1] in programs[program], command
            continue
        # The other commands are of the installation's namespace. They query, delete, or run Python
        # in a broker, because its image has no other tools.
        words = command.split(" ")
        assert words[:3] == ["kubectl", "-n", "tidemark"], command
        verb, resource = words[3], words[4]
        if verb == "get" and resource == "--raw":
            continue
        if verb == "logs":
            assert re.fullmatch(r"statefulset/tidemark-operator|broker-1-0", resource), command
            continue
        if verb == "exec":
            script = re.fullmatch(r'broker-1-0 -- python3 -c "([^"]+)"', " ".join(words[4:]))
            assert script is not None, command
            compile(script[1], command, "exec")
            continue
        assert verb in ("get", "describe", "delete"), command
        assert set(resource.split(",")) <= TIDEMARK_RESOURCES | OF_KUBERNETES, command


def test_reasons_and_keys_that_runbooks_name_exist() -> None:
    reasons = {reason for reasons in TABLE.values() for reason in reasons}
    keys = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    for name in NAMES:
        for word in re.findall(r"`([A-Z]\w+[a-z])`", _text(name)):
            assert word in reasons, f"{name}: {word}"
        for key in re.findall(r"`(?!status)((?:[a-z]+\.){2,}[a-z]+)`", _text(name)):
            assert f"`{key}`" in keys, f"{name}: {key}"


def test_rules_file_is_plain_yaml() -> None:
    text = Path(ROOT / "charts" / "tidemark" / "files" / "rules.yaml").read_text("utf-8")
    assert yaml.safe_load(text).keys() == {"groups"}
