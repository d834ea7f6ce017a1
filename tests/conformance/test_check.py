"""The program of ``helm test`` on real operators and brokers: it passes on a working cluster,
and names what does not answer.
"""

import pytest
from local_cluster import RunningCluster

from tidemark_devcluster.ports import free_port
from tidemark_operator import check


def arguments(cluster: RunningCluster, bootstrap: str, *more: str) -> list[str]:
    addresses = cluster.local.addresses()
    return [
        f"--kubeconfig={addresses.kubeconfig}",
        f"--namespace={cluster.local.settings.namespace}",
        f"--cluster={cluster.local.settings.cluster}",
        f"--operator={addresses.metrics.removeprefix('http://').partition('/')[0]}",
        f"--listener=PLAINTEXT://{bootstrap}",
        "--brokers=3",
        *more,
    ]


def test_working_cluster_passes(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = cluster.bootstrap.split(",")[0]
    assert check.main(arguments(cluster, begin)) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in said] == ["ok:"] * 3


@pytest.mark.full
def test_unreachable_listener_and_missing_brokers_are_named(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    # A port without a listener, and more brokers than exist: two of three checks fail.
    assert check.main(arguments(cluster, nobody, "--brokers=9", "--within-s=0")) == 1
    operator, ready, listener = capsys.readouterr().out.splitlines()
    assert operator.startswith("ok:")
    assert ready.endswith("of 9 brokers are registered")
    assert listener.startswith("FAILED:")
    assert nobody in listener
