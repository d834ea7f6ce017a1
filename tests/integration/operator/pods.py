"""Brokers in pods, without pods: the test acts as StatefulSet controller, volume binder and
kubelet.

It writes the statuses that these would write; the operator writes the specs.
"""

import base64
from pathlib import Path
from typing import Any

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tests.unit.pods.pod_values import POD
from tidemark_operator.certificates.certificate_stores import write_files
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import BROKER, SECRET, STATEFUL_SET, VOLUME_CLAIM, Json

ADDRESSES = "op-0.ops:9095,op-1.ops:9095"
#: Long: whatever happens within a test does not wait for a session to end.
SESSION_S = 600.0


def pod(image: str = "tidemark/broker:1", **fields: Any) -> Json:
    """``spec.pod`` of a Broker."""
    return POD | {"image": image} | fields


async def start_operator(world: ClusterWorld) -> OperatorProcess:
    """Start an operator that leads and knows which addresses brokers in pods use."""
    made = world.operator(session_timeout_s=SESSION_S, controller_addresses=ADDRESSES)
    await made.start()
    return made


async def create_broker(world: ClusterWorld, node_id: int, **fields: Any) -> None:
    """Create a Broker that runs in a pod."""
    name = f"broker-{node_id}"
    await world.create(BROKER, name, nodeId=node_id, workload="Pod", pod=pod(**fields))


async def stateful_set(world: ClusterWorld, node_id: int) -> Json:
    """Return a broker's StatefulSet once it exists."""
    name = f"broker-{node_id}"
    await world.until(lambda: world.exists(STATEFUL_SET, name), f"StatefulSet {name}")
    return await world.get(STATEFUL_SET, name)


async def image(world: ClusterWorld, node_id: int) -> str:
    """Return the image of the current pod template."""
    body = await stateful_set(world, node_id)
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


async def run(world: ClusterWorld, node_id: int) -> None:
    """Set the status of a running, ready pod, as the StatefulSet controller does."""
    body = await stateful_set(world, node_id)
    status = {
        # The operator trusts counters only if they are about the current generation.
        "observedGeneration": body["metadata"]["generation"],
        **dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), 1),
    }
    await world.api.merge_patch(
        STATEFUL_SET, world.namespace, f"broker-{node_id}", {"status": status}, "status"
    )


async def bind(world: ClusterWorld, node_id: int) -> None:
    """Bind the claim to a volume of the size that was requested first."""
    name = f"data-broker-{node_id}-0"
    # Binding is what turns a claim's request into a fixed volume, so changes are growth from now
    # on.
    claim = await world.get(VOLUME_CLAIM, name)
    await world.api.merge_patch(
        VOLUME_CLAIM, world.namespace, name, {"spec": {"volumeName": f"volume-{world.namespace}"}}
    )
    status = {"phase": "Bound", "capacity": claim["spec"]["resources"]["requests"]}
    await world.api.merge_patch(VOLUME_CLAIM, world.namespace, name, {"status": status}, "status")


async def mount(world: ClusterWorld, name: str, folder: Path) -> None:
    """Write a Secret's files into a folder, as a kubelet mounts it, once it exists."""

    async def there() -> bool:
        try:
            body = await world.get(SECRET, name)
        except NotFound:
            return False
        write_files(folder, {key: base64.b64decode(text) for key, text in body["data"].items()})
        return True

    await world.until(there, f"the Secret {name}")
