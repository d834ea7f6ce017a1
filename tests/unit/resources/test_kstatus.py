"""Tools that wait by kstatus (helm --wait, Flux) continue when an object is done."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.argocd import states
from tests.kstatus import StatusVerdict, expected, verdict
from tidemark.reason_table import TABLE
from tidemark_operator.controller.status.conditions import condition, render, summary

CRDS = Path(__file__).parents[3] / "crds"


def definitions() -> dict[str, Any]:
    """Return the schema of each kind that has conditions."""
    found = {}
    for path in sorted(CRDS.glob("*.yaml")):
        spec = yaml.safe_load(path.read_text("utf-8"))["spec"]
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
        if "conditions" in schema["properties"].get("status", {}).get("properties", {}):
            found[spec["names"]["kind"]] = schema
    return found


def test_every_kind_with_conditions_is_covered() -> None:
    kinds = {"Topic", "Broker", "Cluster", "RecordDeletion", "User", "Export"}
    assert set(definitions()) == kinds


@pytest.mark.parametrize("kind", definitions())
def test_an_object_that_no_operator_has_seen_is_in_progress(kind: str) -> None:
    status = definitions()[kind]["properties"]["status"]["default"]
    new = {"metadata": {"name": "x", "generation": 1}, "status": status}
    assert verdict(new) is StatusVerdict.IN_PROGRESS


@pytest.mark.parametrize("heading", TABLE)
def test_kstatus_verdict_matches_every_reason(heading: str) -> None:
    for reason, body in states.in_every_state(heading):
        if reason in ("Pending", "Abandoned"):  # a default of the schema, and a deleted object
            continue
        assert verdict(body) is expected(body), (body["kind"], reason)


@pytest.mark.parametrize("kind", definitions())
def test_a_changed_spec_is_in_progress_until_it_is_observed(kind: str) -> None:
    status = states.status(kind, [], generation=states.GENERATION)
    assert verdict(states.body(kind, status)) is StatusVerdict.CURRENT
    changed = states.body(kind, status, generation=states.GENERATION + 1)
    assert verdict(changed) is StatusVerdict.IN_PROGRESS


def test_stalled_object_has_failed_despite_other_progress() -> None:
    story = summary(ready=False, reason="AddressRefused", message="", reconciling=True)
    story[2] = condition("Stalled", True, "AddressRefused")
    # The order of the conditions must not matter.
    for conditions in (story, story[::-1], [*story, condition("Draining", True, "MovingReplicas")]):
        rendered = render(conditions, {}, generation=1, now_ms=0)
        body = {
            "metadata": {"generation": 1},
            "status": {"observedGeneration": 1, "conditions": rendered},
        }
        assert verdict(body) is StatusVerdict.FAILED
