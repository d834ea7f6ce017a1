"""Report, on the Cluster, of objects that a policy, a quota or a role forbids to create.

Otherwise only a log would say why, for example, ``__consumer_offsets`` is never created in a
namespace where a policy requires a label, and why consumer groups do not work.
"""

import dataclasses
from collections.abc import Callable

from tidemark.reasons import Reason
from tidemark_operator.controller.events import warning
from tidemark_operator.controller.status.cluster import REFUSED_REMEDY
from tidemark_operator.kube.kinds import CLUSTER, EVENT
from tidemark_operator.kube.own_objects import CreationRefusal
from tidemark_operator.reconcile.services import TermServices

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
