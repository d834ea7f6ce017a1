"""Status of an object by kstatus: the rules by which helm --wait and Flux wait.

The rules for custom resources of ``sigs.k8s.io/cli-utils`` v0.37.2, ``pkg/kstatus/status``
(``checkGenericProperties``, ``checkReadyCondition``): it knows neither ``Succeeded`` nor any other
condition, the first of Reconciling and Stalled that is True decides, and an object without a reason
to wait is Current.
"""

import enum
from collections.abc import Mapping
from typing import Any


class StatusVerdict(enum.StrEnum):
    """Results, named as in kstatus."""

    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def verdict(body: Mapping[str, Any]) -> StatusVerdict:
    """Return the verdict on an object as the API server has it."""
    meta, status = body["metadata"], body.get("status") or {}
    if meta.get("deletionTimestamp"):
        return StatusVerdict.TERMINATING
    # kstatus trusts an object without observedGeneration.
    if status.get("observedGeneration", meta.get("generation")) != meta.get("generation"):
        return StatusVerdict.IN_PROGRESS
    conditions = status.get("conditions") or ()
    for condition in conditions:
        if condition["type"] in ("Reconciling", "Stalled") and condition["status"] == "True":
            stalled = condition["type"] == "Stalled"
            return StatusVerdict.FAILED if stalled else StatusVerdict.IN_PROGRESS
    ready = next((item for item in conditions if item["type"] == "Ready"), None)
    if ready is not None and ready["status"] in ("False", "Unknown"):
        return StatusVerdict.IN_PROGRESS
    return StatusVerdict.CURRENT


def expected(body: Mapping[str, Any]) -> StatusVerdict:
    """Return the verdict that an object's own conditions amount to, for a person who reads them.

    Stalled is failed, whatever else is under way; only an outcome that is True is Current.
    """
    meta, status = body["metadata"], body.get("status") or {}
    found = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    if meta.get("deletionTimestamp"):
        return StatusVerdict.TERMINATING
    if status.get("observedGeneration", 0) != meta["generation"]:
        return StatusVerdict.IN_PROGRESS
    if found.get("Stalled") == "True":
        return StatusVerdict.FAILED
    outcome = found.get("Ready", found.get("Succeeded"))
    if found.get("Reconciling") == "True" or outcome != "True":
        return StatusVerdict.IN_PROGRESS
    return StatusVerdict.CURRENT
