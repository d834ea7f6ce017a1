"""A real broker with the configuration that the operator gives to the pod of a Broker of the chart,
and the certificate that it keeps in a Secret.

What a kubelet does is done here by hand: ConfigMap and Secret become files, and folders, names and
ports of the pod become those of this machine.
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.chart_pods import entries_of, operator_settings
from tests.helm import CHART, Helm, named
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tests.integration.operator.pods import mount
from tidemark_operator.kube.kinds import BROKER, CONFIG_MAP, TOPIC

VALUES = {
    "cluster": {"name": "demo"},
    "brokers": {"broker-1": {"nodeId": 1, "rack": "a"}},
    "brokerPods": {"enabled": True},
}


async def test_broker_of_the_chart_registers_and_leads(world: ClusterWorld, tmp_path: Path) -> None:
    objects = Helm(tmp_path / "helm").template(CHART, VALUES, namespace=world.namespace)
    # No folder of certificates: the operator keeps them in Secrets, as in a cluster.
    operator = OperatorProcess(
        world.kubeconfig,
        world.namespace,
        tmp_path / "operator.log",
        "127.0.0.1:0",
        certificates=None,
        controller_addresses=operator_settings(objects).controller_addresses,
    )
    world.operators.append(operator)
    await world.create_cluster()
    await world.api.create(BROKER, world.namespace, named(objects, "Broker", "broker-1"))
    await operator.start()
    certificate = tmp_path / "certificate"
    # What a kubelet does: mount the Secret, and the ConfigMap below.
    await mount(world, "broker-1-tls", certificate)
    await world.until(lambda: world.exists(CONFIG_MAP, "broker-1"), "its configuration")
    entries = entries_of(await world.get(CONFIG_MAP, "broker-1"))
    # Only paths, addresses and ports differ from those in a pod.
    here = {
        "listeners": "PLAINTEXT://127.0.0.1:0,REPLICATION://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://localhost:0,REPLICATION://localhost:0",
        "controller.addresses": operator.control,
        "log.dir": str(tmp_path / "data" / "log"),
        "tidemark.tls.directory": str(certificate),
        "metrics.port": "0",
    }
    # Every replaced key must exist in the generated configuration, otherwise this replaces nothing.
    assert here.keys() <= entries.keys()
    (tmp_path / "data").mkdir()
    config = tmp_path / "broker.properties"
    config.write_text("\n".join(f"{key}={text}" for key, text in (entries | here).items()))
    broker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidemark_broker", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert broker.stdout is not None
        async with asyncio.timeout(60):
            ready = json.loads(await broker.stdout.readline())
        assert (ready["ready"], ready["nodeId"]) == (True, 1)
        # A Ready topic proves registration, command connection and leadership.
        await world.create_topic("t", replicas=1)
        await world.condition(TOPIC, "t", "Ready", "True")
        status = await world.status_where(BROKER, "broker-1", lambda found: "rack" in found)
        assert status["rack"] == "a"
    finally:
        broker.terminate()
        await broker.communicate()
    assert broker.returncode == 0
