"""Listeners of Strimzi's Kafka objects as values of the chart, and what has no equivalent."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.helm import CHART, Helm
from tidemark_cli.imports.documents import Document
from tidemark_cli.imports.strimzi_listeners import EquivalentValues, equivalent_values
from tidemark_cli.imports.topics import NotImported
from tidemark_cli.main import app
from tidemark_operator.resources.cluster import Cluster

SCRAM = {"type": "scram-sha-512"}


def listener(name: str = "plain", port: int = 9092, **other: Any) -> dict[str, Any]:
    return {"name": name, "port": port, "type": "internal", "tls": False, **other}


def body(*listeners: dict[str, Any], **kafka: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "Kafka",
        "metadata": {"name": "my-cluster"},
        "spec": {"kafka": {"listeners": list(listeners), **kafka}},
    }


def values_of(*listeners: dict[str, Any], **kafka: Any) -> EquivalentValues:
    return equivalent_values(Document("here", body(*listeners, **kafka)))


def pods_of(*listeners: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = values_of(*listeners).values["brokerPods"]
    return made


@pytest.mark.parametrize(
    ("tls", "authentication", "protocol"),
    [
        (False, None, "PLAINTEXT"),
        (False, SCRAM, "SASL_PLAINTEXT"),
        (True, None, "SSL"),
        (True, {"type": "tls"}, "SSL"),
        (True, SCRAM, "SASL_SSL"),
        (True, {"type": "oauth"}, "SASL_SSL"),
    ],
)
def test_protocol_has_the_same_encryption_and_authentication(
    tls: bool, authentication: dict[str, str] | None, protocol: str
) -> None:
    pods = pods_of(listener("inside", tls=tls, authentication=authentication))
    assert pods["listeners"]["PLAINTEXT"] is None
    assert pods["listeners"]["INSIDE"]["protocol"] == protocol
    assert ("tlsSecret" in pods["listeners"]["INSIDE"]) == tls


def test_client_certificates_are_required_where_strimzi_requires_them() -> None:
    made = values_of(listener("certs", tls=True, authentication={"type": "tls"}))
    assert made.values["brokerPods"]["config"] == {
        "listener.name.certs.ssl.client.auth": "required"
    }
    assert any("authorities of the clients" in remark for remark in made.remarks)
    config = pods_of(listener("pw", authentication=SCRAM))["config"]
    assert config == {"listener.name.pw.sasl.enabled.mechanisms": "SCRAM-SHA-512"}


def test_own_certificate_of_a_listener_is_named() -> None:
    chain = {"secretName": "wild", "certificate": "tls.crt", "key": "tls.key"}
    made = values_of(listener(tls=True, configuration={"brokerCertChainAndKey": chain}))
    assert made.values["brokerPods"]["listeners"]["PLAIN"]["tlsSecret"] == "wild"
    made = values_of(listener(tls=True))
    assert made.values["brokerPods"]["listeners"]["PLAIN"]["tlsSecret"] == "plain-listener"
    assert "Strimzi's cluster CA issued its certificate" in made.remarks[0]


def test_external_listeners_keep_addresses() -> None:
    balanced = {
        "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "class": "shop",
        "advertisedHostTemplate": "broker-{nodeId}.example.com",
        "bootstrap": {"annotations": {"dns": "kafka.example.com"}},
    }
    # The bootstrap host is missing on purpose: Strimzi's name cannot belong to both clusters.
    nodes = {"preferredNodePortAddressType": "ExternalIP", "bootstrap": {"nodePort": 32000}}
    made = pods_of(
        listener("lb", 9095, type="loadbalancer", configuration=balanced),
        listener("np", 9096, type="nodeport", configuration=nodes),
    )["listeners"]
    assert made["LB"]["external"] == {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "loadBalancerClass": "shop",
        "host": "broker-{nodeId}.example.com",
        "bootstrap": {"annotations": {"dns": "kafka.example.com"}},
    }
    assert made["NP"]["external"] == {
        "type": "NodePort",
        "nodeAddress": "ExternalIP",
        "bootstrap": {"nodePort": 32000},
    }


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (listener(type="route"), "listener plain: left out: type route has no equivalent"),
        (listener(type="ingress"), "type ingress has no equivalent"),
        (listener(authentication={"type": "custom"}), "authentication custom has no equivalent"),
        (listener("a-b"), "left out: the name 'a-b' is not supported"),
        (listener(port="x"), "left out: port 'x' is not an integer"),
        (listener(networkPolicyPeers=[]), "becomes networkPolicy.clientsFrom"),
        (listener(type="nodeport", networkPolicyPeers=[]), "becomes networkPolicy.externalFrom"),
        (listener(authentication={"type": "oauth"}), "sasl.oauthbearer.jwks.endpoint.url"),
        (listener(configuration={"maxConnections": 5}), "left out: configuration.maxConnections"),
        (
            listener(type="nodeport", configuration={"preferredNodePortAddressType": "Hostname"}),
            "left out: configuration.preferredNodePortAddressType",
        ),
        (
            listener(type="nodeport", configuration={"class": "x", "bootstrap": {"host": "y"}}),
            "left out: configuration.bootstrap, configuration.class",
        ),
        (
            listener(type="nodeport", configuration={"advertisedHostTemplate": "{nodePodName}"}),
            "left out: configuration.advertisedHostTemplate",
        ),
        (
            listener(type="loadbalancer", configuration={"brokers": [{"broker": 0}]}),
            "new brokers have the node ids 1, 2, 3",
        ),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_is_reported(item: dict[str, Any], why: str) -> None:
    assert any(why in remark for remark in values_of(item).remarks)


def test_super_users_are_kept_and_other_authorization_is_reported() -> None:
    simple = {"type": "simple", "superUsers": ["CN=admin", "ann"]}
    made = values_of(listener(), authorization=simple)
    assert made.values["cluster"] == {"spec": {"authorization": simple}}
    made = values_of(listener(), authorization={"type": "opa"})
    assert "cluster" not in made.values
    assert made.remarks == ("authorization opa has no equivalent: declare ACLs in Users",)


def test_unreadable_kafka_is_refused() -> None:
    for listeners in (None, {}, ["plain"]):
        with pytest.raises(NotImported, match="listeners are not a list"):
            equivalent_values(
                Document("here", body() | {"spec": {"kafka": {"listeners": listeners}}})
            )


def test_values_are_a_comment_that_the_chart_accepts(tmp_path: Path) -> None:
    """The comment is YAML once its marks are removed, and Helm makes a valid Cluster of it."""
    found = body(
        listener(),
        listener("tls", 9093, tls=True, authentication={"type": "tls"}),
        # The chart's default for replication.
        listener("external", 9094, type="loadbalancer", tls=True, authentication=SCRAM),
        authorization={"type": "simple", "superUsers": ["CN=admin"]},
    )
    done = CliRunner().invoke(app, ["import", "--strimzi", "-"], input=yaml.safe_dump(found))
    assert done.exit_code == 0, done.stderr
    assert list(yaml.safe_load_all(done.stdout)) == []
    lines = done.stdout.splitlines()
    begin = lines.index("#   brokerPods:")
    values = yaml.safe_load("\n".join(line.removeprefix("#   ") for line in lines[begin:]))
    values["brokerPods"] |= {"replicas": 3}
    objects = Helm(tmp_path).template(CHART, values)
    (cluster,) = (item for item in objects if item["kind"] == "Cluster")
    spec = Cluster.parse(cluster).spec
    assert spec.brokers is not None
    template = spec.brokers.template
    assert [(item.name, item.port, item.protocol) for item in template.listeners] == [
        ("EXTERNAL", 9094, "SASL_SSL"),
        ("PLAIN", 9092, "PLAINTEXT"),
        ("TLS", 9093, "SSL"),
    ]
    assert template.replication_port == 9095
    assert cluster["spec"]["authorization"] == {"type": "simple", "superUsers": ["CN=admin"]}
