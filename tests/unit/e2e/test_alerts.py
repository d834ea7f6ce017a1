"""Every alert is raised by a fault of `make e2e` or has an explanation; runbooks can be run."""

import re

import pytest

from e2e.pods.chapters.alerts import FAULTS, NOT_HERE
from e2e.pods.chapters.alerts.runbooks import FOLDER, commands, named
from tests.monitoring.rules import alerts


def test_every_alert_is_raised_by_a_fault_or_has_an_explanation() -> None:
    raised = [alert for fault in FAULTS for alert in fault.alerts]
    assert sorted([*raised, *NOT_HERE]) == sorted(alerts())


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_runbook_commands_have_no_unknown_placeholder(alert: str) -> None:
    """A word in capitals stands for a value that the run inserts."""
    found = commands((FOLDER / f"{alert}.md").read_text("utf-8"))
    assert found
    for command in found:
        assert command.startswith(("kubectl ", "tidemark "))
        assert re.search(r"\b[A-Z]{4,}\b", named(command)) is None
