"""Objects that a policy, a quota or a role does not let the operator create: reported on the
Cluster, whose owner can give them what is required.

Without that only a log says why consumer groups do nothing in a namespace where, for example, every
object needs a label: ``__consumer_offsets`` is never created.
"""

import dataclasses
from collections.abc import Callable

from tidemark_operator.controller.events import warning
from tidemark_operator.controller.status.cluster import REFUSED_REMEDY
from tidemark_operator.kube.kinds import CLUSTER, EVENT
from tidemark_operator.kube.own_objects import CreationRefusal
from tidemark_operator.reconcile.services import TermServices

#: A refusal that is not repeated is forgotten (:mod:`tidemark_operator.kube.own_objects`).
LOOK_AGAIN_S = 60.0


def reporter(services: TermServices) -> Callable[[CreationRefusal], None]:
    """Return what is to happen with a new refusal: one Event, and the Cluster's condition."""

    def report(refusal: CreationRefusal) -> None:
        services.queue.add(services.cluster_key)
        if refusal.kind != EVENT.kind:  # it would be refused as well
            text = f"the API server refuses {refusal}. {REFUSED_REMEDY}"
            key = services.cluster_key.namespaced_name
            services.events.emit(warning(CLUSTER.kind, key, "CreationRefused", text))

    return report


def look(services: TermServices) -> float | None:
    """Take what is refused into the state, before the Cluster's status is computed. When to look
    again, in seconds."""
    refused = services.client.api.own.refused()
    state = services.state
    state.cluster = dataclasses.replace(state.cluster, refused_creations=tuple(map(str, refused)))
    return LOOK_AGAIN_S if refused else None
