"""Whether clients outside the Kubernetes cluster are told an address: the condition
ExternalAddress of a Broker and of a Cluster, and the addresses in their statuses."""

from collections.abc import Mapping

from tidemark.reasons import Reason
from tidemark_operator.controller import external_listeners
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.external_listeners import Missing
from tidemark_operator.controller.model import BrokerInfo, Json
from tidemark_operator.controller.status.conditions import Condition, condition, find

EXTERNAL_ADDRESS = "ExternalAddress"
ENDPOINTS, LISTENERS = "externalEndpoints", "externalListeners"
#: Of hundreds of brokers all wait for the same.
NAMED = 3


def of_broker(
    state: ControllerState, broker: BrokerInfo, conditions: list[Condition]
) -> tuple[list[Condition], dict[str, object]]:
    """A Broker's conditions and what its status says of external listeners; the first three
    conditions are Ready, Reconciling and Stalled."""
    if not broker.external:
        return conditions, {}
    found = external_listeners.external(state, broker)
    told = external_listeners.rendered(external_listeners.told_outside(state, broker))
    texts = {
        name: each if isinstance(each, Missing) else external_listeners.text_of(each)
        for name, each in found.items()
    }
    return _with(conditions, _condition(texts)), {ENDPOINTS: told} if told else {}


def of_cluster(
    state: ControllerState, conditions: list[Condition]
) -> tuple[list[Condition], dict[str, object]]:
    """The same of a Cluster: where clients begin, and whether that and all brokers are told."""
    status = state.cluster.status
    found = external_listeners.bootstrap_servers(state)
    if found is None:  # as a former controller said
        told = {LISTENERS: status[LISTENERS]} if status.get(LISTENERS) else {}
        return [*conditions, *_former(status)], told
    if not found:
        return conditions, {}
    servers = [
        {"name": name, "bootstrapServers": each}
        for name, each in sorted(found.items())
        if isinstance(each, str)
    ]
    missing = {**external_listeners.refused_bootstraps(state), **_brokers(state)}
    present = _with(conditions, _condition({**found, **missing}))
    return present, {LISTENERS: servers} if servers else {}


def _brokers(state: ControllerState) -> dict[str, Missing]:
    """Brokers that clients outside cannot reach."""
    found = {}
    for node_id, broker in sorted(state.brokers.items()):
        for name, each in external_listeners.external(state, broker).items():
            if isinstance(each, Missing):
                found[f"broker {node_id}, {name}"] = each
    return found


def _former(status: Json) -> list[Condition]:
    """The condition as it was left."""
    former = find(status, EXTERNAL_ADDRESS)
    if former is None:
        return []
    parts = {name: str(former.get(name, "")) for name in ("type", "status", "reason", "message")}
    return [Condition(**parts)]


def _with(conditions: list[Condition], found: Condition) -> list[Condition]:
    ready, reconciling, stalled, *others = conditions
    if found.reason == Reason.ADDRESS_PENDING and reconciling.status != "True":
        reconciling = condition("Reconciling", True, found.reason, found.message)
    if found.reason == Reason.ADDRESS_REFUSED and stalled.status != "True":
        stalled = condition("Stalled", True, found.reason, found.message)
    return [ready, reconciling, stalled, *others, found]


def _condition(found: Mapping[str, str | Missing]) -> Condition:
    missing = {name: each for name, each in found.items() if isinstance(each, Missing)}
    if not missing:
        text = "; ".join(f"{name}: {each}" for name, each in found.items())
        return condition(EXTERNAL_ADDRESS, True, Reason.ADVERTISED, text)
    refused = {name: each for name, each in missing.items() if each.refused}
    shown = list((refused or missing).items())
    text = "; ".join(f"{name}: {each.why}" for name, each in shown[:NAMED])
    if len(shown) > NAMED:
        text += f"; and {len(shown) - NAMED} more"
    reason = Reason.ADDRESS_REFUSED if refused else Reason.ADDRESS_PENDING
    return condition(EXTERNAL_ADDRESS, False, reason, text)
