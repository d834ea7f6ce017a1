"""Lasting failures of an object, shown in its conditions and as an Event.

A failed try is no news: conflicts and busy servers are normal, and the next try succeeds. A failure
that repeats a few times in a row waits for a person, who does not read the log. It is reported once
per reason; the next status that the object's own reconciler writes removes it. Nothing is reported
while the API server does not answer: nothing could be written.

Objects that a policy, a quota or a role forbids to create are reported on the Cluster. Otherwise
only a log would say why, for example, ``__consumer_offsets`` is never created in a namespace where
a policy requires a label, and why consumer groups do not work.
"""

import dataclasses
import logging
from collections.abc import Callable

from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.state.events import warning
from tidemark_operator.controller.status.cluster import REFUSED_REMEDY
from tidemark_operator.controller.status.conditions import condition, render, stalled_first
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Forbidden, KubeError
from tidemark_operator.kube.kinds import BY_KIND, CLUSTER, EVENT, Json, Key
from tidemark_operator.kube.own_objects import CreationRefusal
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.slices.committer import DecisionFailed

logger = logging.getLogger(__name__)

#: Failed tries in a row before a report; a conflict with another writer is given longer.
TRIES = 3
CONFLICTS = 8

CONTENDED = Reason.CONTENDED


def reason_of(error: Exception) -> str:
    """Return the condition reason under which a failure is reported, "" if it is not reported.

    An unavailable API server is not the object's fault, and its status could not be written.
    """
    match error:
        case ApiServerUnavailable():
            return ""
        case Conflict():
            return CONTENDED
        case Forbidden():
            return Reason.ACCESS_DENIED
        case KubeError():
            return Reason.WRITE_REFUSED
        case InvalidResource():
            return Reason.OBJECT_UNREADABLE
        case DecisionFailed():
            return Reason.DECISION_NOT_STORED
    return Reason.INTERNAL_ERROR


def sentence_of(error: Exception) -> str:
    """Return the text of a failure's condition: the cause and what to do."""
    if isinstance(error, KubeError) and error.by_policy:
        return f"an admission policy rejects a write of the operator: {error}. {REFUSED_REMEDY}"
    # One text for each reason of `reason_of`.
    match reason_of(error):
        case Reason.CONTENDED:
            return f"another writer keeps changing the object: {error}"
        case Reason.ACCESS_DENIED:
            return f"the operator's account lacks a permission: {error}. Allow it"
        case Reason.WRITE_REFUSED:
            return f"the API server rejects a write of the operator: {error}"
        case Reason.OBJECT_UNREADABLE:
            return f"this version of the operator cannot read the object: {error}. Correct it"
        case Reason.DECISION_NOT_STORED:
            return f"the decision could not be stored: {error}"
    return (
        f"internal error of the operator ({type(error).__name__}: {error}). Report "
        "it with the operator's log"
    )


class Failures:
    """Failures of one term, bounded by the number of objects that fail."""

    def __init__(self, services: TermServices) -> None:
        self._services = services
        self._reported: dict[Key, set[str]] = {}
        #: Reasons with an Event, also while the condition cannot be written.
        self._emitted: dict[Key, set[str]] = {}

    def clear(self, key: Key) -> None:
        """Drop the failures of an object that was reconciled or deleted."""
        self._reported.pop(key, None)
        self._emitted.pop(key, None)

    async def report(self, key: Key, error: Exception) -> None:
        """Report a failed reconciliation as an Event and as condition Stalled, once per reason.

        Only a failure that has repeated often enough is reported; most are temporary.
        ``queue.failures`` counts the failures in a row.
        """
        reason, tries = reason_of(error), self._services.queue.failures(key)
        # Conflicts resolve themselves more often than other failures, so they have another limit.
        least = CONFLICTS if reason == CONTENDED else TRIES
        if not reason or tries < least or reason in self._reported.get(key, ()):
            return
        body = self._services.objects.get(key)
        if body is None:
            return
        text = f"{sentence_of(error)} (failed {count(tries, 'time')}, retrying)"
        # The Event is emitted once, even if writing the condition fails several times.
        emitted = self._emitted.setdefault(key, set())
        if reason not in emitted:
            emitted.add(reason)
            self._services.events.emit(warning(key.kind, key.namespaced_name, reason, text))
        # A condition that could not be written is written after the next failed try.
        try:
            await self._write(key, body, reason, text)
            self._reported.setdefault(key, set()).add(reason)
        except KubeError as refused:
            logger.warning("%s: its conditions could not be written either: %s", key, refused)

    async def _write(self, key: Key, body: Json, reason: str, text: str) -> None:
        """Write the condition Stalled to an object; its other conditions stay unchanged.

        ``observedGeneration`` becomes the present generation: kstatus reports an object with an
        older one as in progress, so an object whose new spec cannot be reconciled would never count
        as failed.
        """
        # Only Stalled is rendered; it replaces the entry of its type.
        former: Json = body.get("status") or {}
        generation = int(body["metadata"]["generation"])
        stalled = render(
            [condition("Stalled", True, reason, text)],
            former,
            generation=generation,
            now_ms=wall_ms(),
        )
        conditions_before = former.get("conditions") or ()
        kept = [entry for entry in conditions_before if entry.get("type") != "Stalled"]
        conditions = stalled_first([*kept, *stalled])
        status = {**former, "observedGeneration": generation, "conditions": conditions}
        await self._services.statuses.write(BY_KIND[key.kind], key, status)


# ------------------------------------------------------------ refused creations


#: A refusal that is not repeated is forgotten (:mod:`tidemark_operator.kube.own_objects`).
LOOK_AGAIN_S = 60.0


def reporter(services: TermServices) -> Callable[[CreationRefusal], None]:
    """Return the callback for a new refusal: it emits an Event and updates the Cluster."""

    def report(refusal: CreationRefusal) -> None:
        services.queue.add(services.cluster_key)
        if refusal.kind != EVENT.kind:  # it would be refused as well
            text = f"the API server rejects {refusal}. {REFUSED_REMEDY}"
            key = services.cluster_key.namespaced_name
            services.events.emit(warning(CLUSTER.kind, key, Reason.CREATION_REFUSED, text))

    return report


def take_refusals(services: TermServices) -> float | None:
    """Copy the refusals into the state, before the Cluster's status is computed. Return the seconds
    until the next look, None for none."""
    refused = services.client.api.own.refused()
    state = services.state
    state.cluster = dataclasses.replace(state.cluster, refused_creations=tuple(map(str, refused)))
    return LOOK_AGAIN_S if refused else None
