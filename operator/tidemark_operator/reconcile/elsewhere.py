"""Topics and Brokers whose Cluster this operator does not control: said in a condition, once."""

from tidemark_operator.controller.status.conditions import Condition, render, summary
from tidemark_operator.kube.kinds import CLUSTER, Json, Key, Kind
from tidemark_operator.reconcile.context import Context


async def elsewhere(context: Context, kind: Kind, key: Key, body: Json) -> float | None:
    """Write Ready=False with the reason; nothing else happens until the Cluster is there."""
    name = str(body["spec"]["clusterRef"]["name"])
    exists = context.objects.get(Key(CLUSTER.kind, key.namespace, name)) is not None
    if exists:
        text = (
            f"Cluster {name} is not controlled by this operator, which looks after "
            f"{context.cluster_key.name}"
        )
        conditions = summary(ready=False, reason="ClusterNotControlled", message=text, stalled=True)
    else:
        text = f"there is no Cluster {name} in namespace {key.namespace}: create it"
        conditions = summary(ready=False, reason="ClusterNotFound", message=text, reconciling=True)
    await write_conditions(context, kind, key, body, conditions)
    return None


async def write_conditions(
    context: Context, kind: Kind, key: Key, body: Json, conditions: list[Condition]
) -> None:
    """Write a status that consists of conditions, if it differs from the present one."""
    now_ms = context.now_ms()
    former: Json = body.get("status") or {}
    generation = int(body["metadata"]["generation"])
    status: Json = {
        **former,
        "observedGeneration": generation,
        "conditions": render(conditions, former, generation=generation, now_ms=now_ms),
    }
    if context.pacer.should_write(str(key), former, status, now_ms=now_ms):
        await context.write_status(kind, key, status)
