"""Condition ExternalAddress of a Broker and of a Cluster, with the addresses in their statuses.

It says whether listeners for clients outside the Kubernetes cluster are advertised.
"""

from collections.abc import Mapping

from tidemark.reasons import Reason
from tidemark_operator.controller import external_listeners
from tidemark_operator.controller.external_listeners import Missing
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo, Json
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    condition,
    find,
    with_cause,
)

EXTERNAL_ADDRESS = "ExternalAddress"
ENDPOINTS, LISTENERS = "externalEndpoints", "externalListeners"
#: Brokers in a message: hundreds of them wait for the same thing.
NAMED = 3


def of_broker(
    state: ControllerState, broker: BrokerInfo, conditions: list[ConditionValue]
) -> tuple[list[ConditionValue], dict[str, object]]:
    """Add the condition ExternalAddress to a Broker's conditions; also return its status fields.

    The fields are the addresses of the external listeners. The first three of ``conditions`` are
    Ready, Reconciling and Stalled.
    """
    if not broker.external:
        return conditions, {}
    found = external_listeners.external(state, broker)
    endpoints = external_listeners.rendered(external_listeners.advertised_external(state, broker))
    texts = {
        name: address if isinstance(address, Missing) else external_listeners.text_of(address)
        for name, address in found.items()
    }
    return _with(conditions, _condition(texts)), {ENDPOINTS: endpoints} if endpoints else {}


def of_cluster(
    state: ControllerState, conditions: list[ConditionValue]
) -> tuple[list[ConditionValue], dict[str, object]]:
    """Add the condition ExternalAddress to a Cluster's conditions; also return its status fields.

    The fields are the bootstrap servers of the external listeners.
    """
    status = state.cluster.status
    found = external_listeners.bootstrap_servers(state)
    # A new controller has not read the Services yet: the status keeps what it has.
    if found is None:
        fields = {LISTENERS: status[LISTENERS]} if status.get(LISTENERS) else {}
        return [*conditions, *_former(status)], fields
    if not found:
        return conditions, {}
    servers = [
        {"name": name, "bootstrapServers": text}
        for name, text in sorted(found.items())
        if isinstance(text, str)
    ]
    missing = {**external_listeners.refused_bootstraps(state), **_brokers(state)}
    present = _with(conditions, _condition({**found, **missing}))
    return present, {LISTENERS: servers} if servers else {}


def _brokers(state: ControllerState) -> dict[str, Missing]:
    """Return the listeners of brokers without an external address."""
    found = {}
    for node_id, broker in sorted(state.brokers.items()):
        for name, address in external_listeners.external(state, broker).items():
            if isinstance(address, Missing):
                found[f"broker {node_id}, {name}"] = address
    return found


def _former(status: Json) -> list[ConditionValue]:
    """Return the condition as stored."""
    former = find(status, EXTERNAL_ADDRESS)
    if former is None:
        return []
    parts = {name: str(former.get(name, "")) for name in ("type", "status", "reason", "message")}
    return [ConditionValue(**parts)]


def _with(conditions: list[ConditionValue], found: ConditionValue) -> list[ConditionValue]:
    waits, stuck = (Reason.ADDRESS_PENDING,), (Reason.ADDRESS_REFUSED,)
    return with_cause(conditions, found, reconciling=waits, stalled=stuck)


def _condition(found: Mapping[str, str | Missing]) -> ConditionValue:
    missing = {name: address for name, address in found.items() if isinstance(address, Missing)}
    if not missing:
        text = "; ".join(f"{name}: {address}" for name, address in found.items())
        return condition(EXTERNAL_ADDRESS, True, Reason.ADVERTISED, text)
    # What a person has to fix is shown before what resolves by itself.
    refused = {name: address for name, address in missing.items() if address.refused}
    shown = list((refused or missing).items())
    text = "; ".join(f"{name}: {address.why}" for name, address in shown[:NAMED])
    if len(shown) > NAMED:
        text += f"; and {len(shown) - NAMED} more"
    reason = Reason.ADDRESS_REFUSED if refused else Reason.ADDRESS_PENDING
    return condition(EXTERNAL_ADDRESS, False, reason, text)
