"""What is measured of the state whenever the page is asked for: with thousands of objects that is
more than all else that is done at rest. A placeholder counts as missing."""

import datetime as dt
from collections import Counter
from typing import Any

from tidemark.metrics import operator_table
from tidemark.metrics.families import Values
from tidemark.metrics.metric import Metric
from tidemark.tiering import TieringState
from tidemark_operator.clock import utc_now
from tidemark_operator.controller.disablement import pending, state_name
from tidemark_operator.controller.model import NO_LEADER
from tidemark_operator.kube.kinds import RECORD_DELETION, WATCHED, Json
from tidemark_operator.reconcile.services import Services

#: What a condition says when it is not as it should be, and where it counts then; Reconciling and
#: Registered tell of nothing that Ready does not.
_WRONG = {
    ("Ready", "False"): operator_table.NOT_READY,
    ("Succeeded", "False"): operator_table.NOT_READY,
    ("Stalled", "True"): operator_table.STALLED,
    **{
        (name, "True" if name == "Draining" else "False"): operator_table.UNSETTLED
        for name in operator_table.UNSETTLED.labels[1].values
    },
}


def measure(services: Services) -> None:
    """Take every figure that the state tells; the API server is not asked."""
    state, queue = services.state, services.queue
    registered = [broker for broker in state.brokers.values() if broker.registered]
    live = sum(broker.live for broker in registered)
    waiting = (state.row(key) for key in state.with_placeholders)
    single: dict[Metric, float] = {
        operator_table.QUEUE_DEPTH: queue.depth,
        operator_table.QUEUE_HEAD_AGE: queue.head_age_s(),
        operator_table.PARTITIONS: state.partition_count,
        operator_table.OFFLINE: state.leader_count(NO_LEADER),
        operator_table.UNDER_REPLICATED: state.short_of_replicas(),
        operator_table.PLACEHOLDERS: sum(row.placeholders for row in waiting if row is not None),
        operator_table.REMOTE_BYTES: sum(each.remote_bytes for each in state.reports.values()),
    }
    brokers: Values = {("live",): live, ("fenced",): len(registered) - live}
    services.metrics.measured.take(
        {
            **{row: {(): value} for row, value in single.items()},
            operator_table.BROKERS: brokers,
            **_tiering(services),
            **_conditions(services),
        }
    )


def _tiering(services: Services) -> dict[Metric, Values]:
    counts: dict[tuple[str, ...], int] = {(state_name(state),): 0 for state in TieringState}
    waiting = 0
    for topic in services.state.topics.values():
        counts[state_name(topic.tiering.state),] += 1
        if topic.tiering.is_disabling:
            waiting += len(pending(services.state, topic, services.disablements))
    return {
        operator_table.TOPICS: counts,
        operator_table.PENDING_DISABLEMENTS: {(): waiting},
    }


def _conditions(services: Services) -> dict[Metric, Values]:
    """By reason; what nobody has is not shown as 0, for there are a hundred of them."""
    objects: dict[tuple[str, ...], int] = {}
    wrong: dict[Metric, Counter[tuple[str, ...]]] = {row: Counter() for row in _WRONG.values()}
    oldest_s, now = 0.0, utc_now()
    for kind in WATCHED:
        keys = services.objects.keys(kind)
        objects[kind.kind,] = len(keys)
        for key in keys:
            body = services.objects.get(key) or {}
            for condition in (body.get("status") or {}).get("conditions") or ():
                row = _WRONG.get((condition["type"], condition["status"]))
                if row is not None:
                    named = (condition["type"],) if row is operator_table.UNSETTLED else ()
                    wrong[row][kind.kind, *named, condition["reason"]] += 1
            if kind is RECORD_DELETION and _is_under_way(body):
                oldest_s = max(oldest_s, _age_s(body, now))
    return {
        operator_table.OBJECTS: objects,
        **wrong,
        operator_table.OLDEST_DELETION: {(): oldest_s},
    }


def _is_under_way(deletion: Json) -> bool:
    conditions: list[dict[str, Any]] = (deletion.get("status") or {}).get("conditions") or []
    found = next((each for each in conditions if each["type"] == "Succeeded"), None)
    return found is None or (found["status"] == "Unknown" and found["reason"] != "Paused")


def _age_s(body: Json, now: dt.datetime) -> float:
    made = dt.datetime.fromisoformat(body["metadata"]["creationTimestamp"])
    return max(0.0, (now - made).total_seconds())
