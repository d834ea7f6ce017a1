"""Manifests of a Broker in a pod."""

import dataclasses
from typing import Any

import pytest

from tests.unit.pods.pod_values import BROKER, pod
from tidemark_operator.controller.status.cluster import READERS_SELECTOR
from tidemark_operator.pods import configuration
from tidemark_operator.pods.identity import PodBroker, cluster_selector
from tidemark_operator.pods.manifests import BrokerObjects, broker_objects, cluster_objects
from tidemark_operator.pods.rollout import is_complete, replaces_pod
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import ROLE_LABEL

RACK_KEY = "topology.kubernetes.io/zone"


def objects(broker: PodBroker = BROKER, **fields: Any) -> BrokerObjects:
    return broker_objects(pod(**fields), broker)


def template(broker: PodBroker = BROKER, **fields: Any) -> Any:
    return objects(broker, **fields).stateful_set["spec"]["template"]


def test_each_object_names_its_owner() -> None:
    made = objects()
    for item in (made.service, made.config_map, made.stateful_set):
        meta = item["metadata"]
        assert meta["name"] == "broker-1"
        assert meta["ownerReferences"][0] | {"controller": True} == BROKER.owner
        assert BROKER.labels.items() <= meta["labels"].items()
    assert made.claim is not None
    assert "ownerReferences" not in made.claim["metadata"], "a volume outlives its Broker"
    assert made.claim["metadata"]["name"] == "data-broker-1-0"


def test_selectors_and_references_match() -> None:
    made, labels = objects(), template()["metadata"]["labels"]
    assert made.stateful_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert made.service["spec"]["selector"].items() <= labels.items()
    common = cluster_objects("main", "ns", "u", [pod()])
    assert common.bootstrap["spec"]["selector"].items() <= labels.items()
    assert common.budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # The pod mounts every volume, by the name of its object.
    assert made.claim is not None
    volumes = {item["name"]: item for item in template()["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == made.claim["metadata"]["name"]
    assert volumes["config"]["configMap"]["name"] == made.config_map["metadata"]["name"]
    assert volumes["certificate"]["secret"]["secretName"] == "broker-1-tls"
    mounts = {item["name"] for item in template()["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == volumes.keys()


def test_a_reader_has_no_claim_and_a_label_of_its_role() -> None:
    reader = dataclasses.replace(BROKER, is_reader=True)
    assert objects(reader).claim is None
    (data,) = [item for item in template(reader)["spec"]["volumes"] if item["name"] == "data"]
    assert data == {"name": "data", "emptyDir": {"sizeLimit": "20Gi"}}
    # The status of the Cluster names the same labels for autoscalers.
    labels = template(reader)["metadata"]["labels"]
    selector = {**cluster_selector("main"), ROLE_LABEL: "Reader"}
    assert selector.items() <= labels.items()
    text = ",".join(f"{name}={value}" for name, value in selector.items())
    assert READERS_SELECTOR.format("main") == text
    # The disruption budget is for brokers with replicas.
    (expression,) = cluster_objects("main", "ns", "u", [pod()]).budget["spec"]["selector"][
        "matchExpressions"
    ]
    assert expression == {"key": ROLE_LABEL, "operator": "DoesNotExist"}
    assert ROLE_LABEL in labels
    assert ROLE_LABEL not in template()["metadata"]["labels"]


def test_selecting_labels_cannot_be_overridden() -> None:
    given = {"app.kubernetes.io/instance": "other", "team": "a"}
    labels = template(podLabels=given)["metadata"]["labels"]
    assert (labels["app.kubernetes.io/instance"], labels["team"]) == ("main", "a")


def test_pod_has_the_account_of_its_manifest_and_no_token() -> None:
    spec = template(serviceAccountName="brokers")["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("brokers", False)
    assert "serviceAccountName" not in template()["spec"]


def test_pod_has_the_variables_of_its_manifest() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert template(env=[proxy])["spec"]["containers"][0]["env"] == [proxy]
    assert "env" not in template()["spec"]["containers"][0]


def test_signal_during_startup_ends_the_broker() -> None:
    """Process 1 of a namespace ignores signals before it has a handler."""
    assert template()["spec"]["shareProcessNamespace"] is True


def test_startup_is_noticed_soon_and_may_take_an_hour() -> None:
    """A rolling restart waits for each broker's startup."""
    (container,) = template()["spec"]["containers"]
    startup, ready = container["startupProbe"], container["readinessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    assert startup["periodSeconds"] + ready["periodSeconds"] <= 5


def test_the_advertised_address_is_the_one_it_listens_on() -> None:
    tls = {
        "name": "TLS",
        "port": 9093,
        "protocol": "SASL_SSL",
        "tlsSecretRef": {"name": "shown"},
    }
    plain = {"name": "PLAINTEXT", "port": 9092, "protocol": "PLAINTEXT"}
    given = pod(listeners=[tls, plain], config={"num.io.threads": "8"})
    found = configuration.entries(given, BROKER)
    assert found["num.io.threads"] == "8"
    assert found["listeners"].split(",") == [
        "TLS://0.0.0.0:9093",
        "PLAINTEXT://0.0.0.0:9092",
        "REPLICATION://0.0.0.0:9094",
    ]
    host = "broker-1.ns.svc"
    assert found["advertised.listeners"] == found["listeners"].replace("0.0.0.0", host)
    assert found["listener.security.protocol.map"] == "TLS:SASL_SSL,PLAINTEXT:PLAINTEXT"
    assert found["controller.addresses"] == BROKER.controllers
    assert found["broker.rack"] == "a"
    made = broker_objects(given, BROKER)
    mounts = made.stateful_set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert found["listener.name.tls.tidemark.tls.directory"] in {m["mountPath"] for m in mounts}
    ports = {item["name"]: item["port"] for item in made.service["spec"]["ports"]}
    assert ports == {"l-tls": 9093, "l-plaintext": 9092, "replication": 9094, "metrics": 8080}


@pytest.mark.parametrize("end", ["\n", "\r"], ids=["newline", "carriage return"])
@pytest.mark.parametrize("where", ["rack", "value", "key"])
def test_line_breaks_in_values_are_refused(where: str, end: str) -> None:
    text = f"a{end}cluster.id=another"
    broker = dataclasses.replace(BROKER, rack=text) if where == "rack" else BROKER
    config = {"value": {"num.io.threads": text}, "key": {text: "1"}}.get(where, {})
    with pytest.raises(InvalidResource, match="has a line break"):
        configuration.text(pod(config=config), broker)


def test_pod_changes_only_with_its_configuration() -> None:
    assert template() == template()
    assert template(config={"a.b": "1"})["metadata"] != template()["metadata"]
    # The addresses of the controllers are part of the configuration.
    moved = dataclasses.replace(BROKER, controllers="op-0:9095")
    assert template(moved)["metadata"] != template()["metadata"]


def test_another_size_of_the_volume_is_not_another_pod() -> None:
    grown = objects(storage={"size": "40Gi"})
    assert grown.stateful_set == objects().stateful_set
    assert grown.claim["spec"]["resources"]["requests"]["storage"] == "40Gi"


def test_chunk_cache_stays_within_its_volume() -> None:
    """The kubelet evicts a pod whose emptyDir exceeds its limit."""
    fields = {"chunkCache": {"size": "10Gi"}}
    spec = template(**fields)["spec"]
    (volume,) = [item for item in spec["volumes"] if item["name"] == "chunk-cache"]
    assert volume["emptyDir"] == {"sizeLimit": "10Gi"}
    (mount,) = [
        item for item in spec["containers"][0]["volumeMounts"] if item["name"] == volume["name"]
    ]
    found = configuration.entries(pod(**fields), BROKER)
    assert found["tidemark.remote.chunk.cache.disk.path"] == mount["mountPath"]
    assert int(found["tidemark.remote.chunk.cache.disk.bytes"]) == 9 * (1 << 30)
    # Without the field the pod is that of earlier versions, and is not replaced.
    assert "chunk-cache" not in str(template())


@pytest.mark.parametrize(
    ("rack", "given", "expected"),
    [
        pytest.param("a", {"rackTopologyKey": RACK_KEY}, {RACK_KEY: "a"}, id="the rack"),
        pytest.param(None, {"rackTopologyKey": RACK_KEY}, None, id="no rack"),
        pytest.param("a", {}, None, id="no label of racks"),
        pytest.param(
            "a",
            {"rackTopologyKey": RACK_KEY, "nodeSelector": {RACK_KEY: "b", "disk": "ssd"}},
            {RACK_KEY: "a", "disk": "ssd"},
            id="the rack before a selector",
        ),
    ],
)
def test_pod_is_scheduled_in_its_rack(
    rack: str | None, given: dict[str, Any], expected: dict[str, str] | None
) -> None:
    broker = dataclasses.replace(BROKER, rack=rack)
    assert template(broker, **given)["spec"].get("nodeSelector") == expected


def test_brokers_avoid_each_others_nodes_by_default() -> None:
    terms = template()["spec"]["affinity"]["podAntiAffinity"]
    (first, second) = terms["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert second["podAffinityTerm"]["topologyKey"] == RACK_KEY
    given: dict[str, Any] = {"nodeAffinity": {}}
    assert template(affinity=given)["spec"]["affinity"] == given


def stateful_set(**status: int) -> dict[str, Any]:
    return {"metadata": {"generation": 2}, "status": status}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, False, id="not observed yet"),
        pytest.param(
            {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1},
            False,
            id="the former pod is ready",
        ),
        pytest.param({"observedGeneration": 2, "readyReplicas": 1}, False, id="it is to go"),
        pytest.param({"observedGeneration": 2, "updatedReplicas": 1}, False, id="not ready"),
        pytest.param(
            {"observedGeneration": 2, "updatedReplicas": 1, "readyReplicas": 1}, True, id="ready"
        ),
    ],
)
def test_a_pod_is_replaced_once_the_new_one_is_ready(
    status: dict[str, int], expected: bool
) -> None:
    assert is_complete(stateful_set(**status)) is expected


def test_only_a_changed_template_replaces_the_pod() -> None:
    live: Any = {"spec": {"template": {"a": 1}, "replicas": 1}}
    assert not replaces_pod(live, {"spec": {"template": {"a": 1}, "replicas": 2}})
    assert replaces_pod(live, {"spec": {"template": {"a": 2}}})
