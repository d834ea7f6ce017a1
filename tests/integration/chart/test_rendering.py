"""``charts/tidemark`` with several values: the real API server accepts the result, and invalid
values are refused with a message that names them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.pods import readme
from e2e.pods.rights_cases import CASES
from tests.chart_pods import entries_of, objects_of, operator_settings
from tests.helm import CHART, Helm, HelmRefused, named, of_kind
from tests.integration.chart.kubernetes import KubectlClient, KubectlRefused
from tests.monitoring.rules import groups
from tidemark.configuration.table import unread_in_broker_file
from tidemark.export_job import Order
from tidemark.metrics.dashboards import render_all
from tidemark_broker.config import parse
from tidemark_operator import check
from tidemark_operator.controller.state.export_values import DesiredJob
from tidemark_operator.pods.export_job import ExportRunIdentity, export_job
from tidemark_operator.resources.broker import POD_NAME_MAX, Broker
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.external_listener import ExternalListener
from tidemark_operator.settings import BindAddress

S3 = {
    "region": "eu-central-1",
    "buckets": ["one", "two"],
    "credentialsSecretRef": {"name": "tier"},
}
ON_S3: dict[str, Any] = {
    "cluster": {
        "spec": {
            "config": {"remote.log.storage.system.enable": "true", "log.retention.ms": "604800000"},
            "remoteStorage": {"s3": S3 | {"endpoint": "https://store.example:9000"}},
        }
    },
    "brokers": {f"broker-{node}": {"nodeId": node, "rack": "abc"[node]} for node in range(3)},
}
# Every value of the chart, so that no template is left untested.
EVERYTHING: dict[str, Any] = ON_S3 | {
    "brokerPods": {
        "enabled": True,
        "listeners": {"OUTSIDE": {"port": 9093, "protocol": "SASL_SSL", "tlsSecret": "shown"}},
        "serviceAccount": {"create": True, "annotations": {"example.test/role": "brokers"}},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "config": {"controlled.shutdown.max.ms": "20000"},
        "storage": {"size": "1Ti", "className": "fast"},
        "chunkCache": {"size": "50Gi"},
        "podAnnotations": {"example.test/g": "h"},
        "podLabels": {"example.test/i": "j"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "high",
    },
    "image": {"repository": "registry.example/tidemark", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "registry"}],
    "exports": {
        "image": {"repository": "registry.example/pipeline", "tag": "1"},
        "serviceAccount": {"create": True, "name": "jobs", "annotations": {"example.test/l": "m"}},
    },
    "operator": {
        "replicas": 3,
        "logLevel": "DEBUG",
        "env": [{"name": "NO_PROXY", "value": ".svc"}],
        "allowedEndpoints": ["169.254.1.1", "store.local"],
        "podAnnotations": {"example.test/a": "b"},
        "podLabels": {"example.test/c": "d"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
                    ]
                }
            }
        },
    },
    "control": {"port": 9995, "exposeAs": "NodePort", "annotations": {"example.test/e": "f"}},
    "networkPolicy": {
        "controlFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "metrics": {
        "serviceMonitor": {"enabled": True, "topics": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Tidemark"}},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}
BARE = {
    "serviceAccount": {"create": False, "name": "given"},
    "operator": {"replicas": 1},
    "networkPolicy": {"enabled": False},
    "cluster": {"create": False},
}
IN_PODS = ON_S3 | {"brokerPods": {"enabled": True}}
COUNTED = ON_S3 | {
    "brokers": {},
    "brokerPods": {
        "replicas": 3,
        "racks": ["a", "b", "c"],
        "rackTopologyKey": "topology.kubernetes.io/zone",
    },
}
VALUES = {
    "defaults": {},
    "the README's": readme.values(),
    "on S3": ON_S3,
    "in pods": IN_PODS,
    "in pods by their number": COUNTED,
    "everything": EVERYTHING,
    "bare": BARE,
}
#: Values of `make test`: the others are parts of them, or nearly the same.
SHORT = {"defaults", "everything"}
each_values = pytest.mark.parametrize(
    "values",
    [
        pytest.param(values, id=name, marks=[] if name in SHORT else pytest.mark.full)
        for name, values in VALUES.items()
    ],
)


@pytest.fixture(scope="module", autouse=True)
def prometheus_definitions(kubernetes: KubectlClient) -> None:
    """Return the Prometheus operator's kinds by name. Their contents are not validated here."""
    # The definitions only have to exist; their schemas are not part of the chart.
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        plural = f"{kind.lower()}s"
        kubernetes.create(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{plural}.monitoring.coreos.com",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
                },
                "spec": {
                    "group": "monitoring.coreos.com",
                    "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural},
                    "versions": [
                        {
                            "name": "v1",
                            "served": True,
                            "storage": True,
                            "schema": {"openAPIV3Schema": schema},
                        }
                    ],
                },
            }
        )
        kubernetes.run("wait", "--for=condition=Established", f"crd/{plural}.monitoring.coreos.com")


@pytest.mark.usefixtures("base")
@each_values
def test_rendered_objects_are_accepted_and_pods_are_restricted(
    values: dict[str, Any], helm: Helm, kubernetes: KubectlClient
) -> None:
    namespace = kubernetes.namespace()
    # This release brings its own account.
    if values is BARE:
        kubernetes.run("-n", namespace, "create", "serviceaccount", "given")
    # The real API server validates every object.
    helm.run("install", "tidemark", str(CHART), "--namespace", namespace, values=values)
    rendered = list(yaml.safe_load_all(helm.run("get", "manifest", "tidemark", "-n", namespace)))
    names = [f"{body['kind']}.{_group(body)}/{body['metadata']['name']}" for body in rendered]
    assert len(kubernetes.all(namespace, *names)) == len(names)
    workloads = kubernetes.all(namespace, "statefulsets")
    # Brokers' objects are created here, because no operator runs.
    made = [
        objects_of(rendered, body["metadata"]["name"]).stateful_set
        for body in of_kind(rendered, "Broker")
        if body["spec"]["workload"] == "Pod"
    ]
    if made:
        kubernetes.create_all(made)
    pods = [_pod(workload) for workload in (*workloads, *made)]
    # Pods share a process namespace, so that a debugging container sees the broker.
    assert all(pod["spec"]["shareProcessNamespace"] for pod in pods)
    # The `restricted` standard admits all pods.
    kubernetes.create_all(pods, "--dry-run=server")
    # Without the security context they would be refused: the standard is in force.
    for pod in pods:
        del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(KubectlRefused) as refused:
        kubernetes.create_all(pods, "--dry-run=server")
    for pod in pods:
        assert f'pods "{pod["metadata"]["name"]}" is forbidden: violates PodSecurity' in str(
            refused.value
        )
    helm.run("uninstall", "tidemark", "--namespace", namespace)


@each_values
def test_helm_test_hooks_are_deleted_and_check_the_release(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """Each policy lets its pod in, and nothing else, where the release's own may not."""
    # Hooks are not part of the release, so Helm has to delete them.
    hooks = Helm(tmp_path).template_of_test(CHART, values, namespace="home")
    objects = Helm(tmp_path).template(CHART, values, namespace="home")
    pod = hooks[-1]
    assert [body["kind"] for body in hooks].count("Pod") == 1
    for body in hooks:
        policy = body["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"
    labels = pod["metadata"]["labels"].items()
    # Each policy opens its ports to the test pod only.
    for policy in of_kind(hooks, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            (peer,) = rule["from"]
            assert peer["podSelector"]["matchLabels"].items() <= labels
    # No Service, budget or policy of the release takes the pod for one of its own.
    for body in objects:
        for name in ("selector", "podSelector"):
            selector = body.get("spec", {}).get(name) if body["kind"] != "StatefulSet" else None
            if selector:
                assert not selector.get("matchLabels", selector).items() <= labels, body["kind"]
    (container,) = pod["spec"]["containers"]
    (operator,) = named(objects, "StatefulSet", "tidemark-operator")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == operator["image"]
    assert container["command"] == ["python3", "-m", "tidemark_operator.check"]
    # The checks that the pod would run.
    message = [check_.what for check_ in check.checks(container["args"])[0]]
    replicas = values.get("operator", {}).get("replicas", 2)
    assert len([what for what in message if "/healthz" in what]) == replicas
    in_pods = values.get("brokerPods", {})
    assert any("9092" in what for what in message) == bool(in_pods)
    brokers = 3 if in_pods else 0
    assert f"Cluster home/tidemark is Ready with {brokers} brokers" in message


#: Permissions that the account of the pod of `helm test` is tested for, and whether it has them.
RIGHTS = {
    ("get", "clusters.tidemark.dev/tidemark"): "yes",
    ("get", "clusters.tidemark.dev/another"): "no",
    ("list", "clusters.tidemark.dev"): "no",
    ("patch", "clusters.tidemark.dev/tidemark"): "no",
    ("get", "secrets"): "no",
}


@pytest.mark.usefixtures("base")
def test_helm_test_pod_may_only_read_its_cluster(helm: Helm, kubernetes: KubectlClient) -> None:
    namespace = kubernetes.namespace()
    *others, pod = helm.template_of_test(CHART, EVERYTHING, namespace=namespace)
    kubernetes.create_all(others)
    kubernetes.create(pod, "--dry-run=server")
    del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(KubectlRefused, match="violates PodSecurity"):
        kubernetes.create(pod, "--dry-run=server")
    account = f"--as=system:serviceaccount:{namespace}:tidemark-test"
    # An authorization check for each permission, as the pod's account.
    for (verb, what), answer in RIGHTS.items():
        try:
            message = kubernetes.run("-n", namespace, "auth", "can-i", verb, what, account)
        except KubectlRefused:  # "no" is an exit status, too
            message = "no"
        assert message.strip() == answer, (verb, what)


def _pod(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the StatefulSet controller's pod; its storage class does not exist here."""
    template, name = workload["spec"]["template"], workload["metadata"]["name"]
    namespace = workload["metadata"]["namespace"]
    spec = {name: value for name, value in template["spec"].items() if name != "priorityClassName"}
    metadata = {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _group(body: dict[str, Any]) -> str:
    group, slash, version = str(body["apiVersion"]).rpartition("/")
    return f"{version}.{group}" if slash else f"{version}."


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replicas": 3}, "replicas"),
    ({"operator": {"replicas": 0}}, r"/operator/replicas.*minimum"),
    ({"operator": {"suspectTimeoutSeconds": 0.5}}, r"/operator/suspectTimeoutSeconds"),
    ({"operator": {"logLevel": "LOUD"}}, r"/operator/logLevel.*must be one of"),
    ({"metrics": {"rules": {"runbookUrl": "docs"}}}, r"/metrics/rules/runbookUrl.*pattern"),
    ({"control": {"exposeAs": "Ingress"}}, r"/control/exposeAs.*must be one of"),
    ({"image": {"digest": "latest"}}, r"/image/digest.*pattern"),
    ({"cluster": {"spec": {"config": {"num.partitions": 3}}}}, r"num\.partitions.*want string"),
    (
        {"cluster": {"spec": {"remoteStorage": {"filesystem": {"path": "/tier"}}}}},
        "/cluster/spec/remoteStorage",
    ),
    ({"cluster": {"spec": {"remoteStorage": {"s3": {"region": "x"}}}}}, r"buckets"),
    ({"brokers": {"broker-1": {"rack": "a"}}}, r"/brokers/broker-1.*nodeId"),
    ({"brokerPods": {"config": {"node.id": "7"}}}, r"node\.id"),
    ({"brokerPods": {"listeners": {"X": {"port": 9093, "protocol": "TLS"}}}}, r"listeners/X"),
    (
        {
            "brokerPods": {
                "listeners": {
                    "Y": {"port": 1, "protocol": "PLAINTEXT", "external": {"type": "ClusterIP"}}
                }
            }
        },
        r"listeners/Y",
    ),
    (
        {
            "brokerPods": {
                "listeners": {
                    "Z": {
                        "port": 1,
                        "protocol": "PLAINTEXT",
                        "external": {"type": "NodePort", "host": "broker-{nodeId}.example.com:443"},
                    }
                }
            }
        },
        r"listeners/Z/external/host",
    ),
    ({"cluster": {"name": "c" * 49}}, r"/cluster/name.*maxLength"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_invalid_values_are_refused_by_name(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    # The schema of the values refuses them before any template is rendered.
    with pytest.raises(HelmRefused, match=message):
        Helm(tmp_path).template(CHART, values)


@each_values
def test_operator_accepts_its_arguments(values: dict[str, Any], tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, values, namespace="home")
    operator = named(objects, "StatefulSet", "tidemark-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    # Parse the arguments with the operator's own parser.
    settings = operator_settings(objects)
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    assert settings.namespace == "home"
    assert settings.control == BindAddress(host="0.0.0.0", port=ports["control"])
    assert settings.metrics == BindAddress(host="0.0.0.0", port=ports["metrics"])
    given = values.get("operator", {})
    assert settings.allowed_endpoints == set(given.get("allowedEndpoints", ()))
    (role,) = of_kind(objects, "Role")
    leases = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    # The Role allows only the Lease of this release.
    assert leases == {settings.lease_name}, "the Lease that it may hold is the one that it wants"


def test_all_objects_are_in_the_release_namespace(tmp_path: Path) -> None:
    """The installing user needs no rights beyond the release's namespace."""
    for body in Helm(tmp_path).template(CHART, EVERYTHING, namespace="home"):
        assert body["metadata"]["namespace"] == "home", body["kind"]


def test_alert_rules_are_those_of_the_file(tmp_path: Path) -> None:
    home = "https://docs.example/tidemark/runbooks/"
    values = {"metrics": {"rules": {"enabled": True, "runbookUrl": home}}}
    (found,) = of_kind(Helm(tmp_path).template(CHART, values, namespace="home"), "PrometheusRule")
    # Only the namespace and the links to runbooks are replaced.
    assert json.dumps(found["spec"]["groups"]) == json.dumps(groups()).replace(
        '\\"tidemark\\"', '\\"home\\"'
    ).replace("docs/runbooks/", home)
    assert '\\"home\\"' in json.dumps(found)


def test_dashboards_are_found_by_grafana(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    maps = [
        body for body in of_kind(objects, "ConfigMap") if "dashboard" in body["metadata"]["name"]
    ]
    assert {"tidemark-dashboard-fleet", "tidemark-dashboard-topic"} == {
        body["metadata"]["name"] for body in maps
    }
    for body in maps:
        assert body["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert body["metadata"]["annotations"] == {"grafana_folder": "Tidemark"}
        for name, text in body["data"].items():
            assert json.loads(text) == json.loads(render_all()[name])


def test_brokers_receive_the_address_of_every_operator(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    # Three operators, three addresses, in the order of their pods.
    pods = [f"tidemark-operator-{number}" for number in range(3)]
    config_map = objects_of(objects, "broker-1").config_map
    config = parse(entries_of(config_map) | {"cluster.id": "c"})
    assert [str(controller) for controller in config.controllers] == [
        f"{pod}.tidemark-operator.home.svc:9995" for pod in pods
    ]
    services = {body["metadata"]["name"] for body in of_kind(objects, "Service")}
    assert services >= {*pods, "tidemark-operator"}, "outside, each has one of its own"


def test_advertised_addresses_lead_to_a_service(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    made = objects_of(objects, "broker-2")
    config = parse(entries_of(made.config_map) | {"cluster.id": "c"})
    # The generated configuration has no key that brokers ignore.
    assert not unread_in_broker_file(config.entries)
    assert (config.node_id, config.rack) == (2, "c")
    assert config.integer("controlled.shutdown.max.ms") == 20_000
    service = made.service
    (container,) = made.stateful_set["spec"]["template"]["spec"]["containers"]
    open_ports = {item["containerPort"] for item in container["ports"]}
    assert {item["port"] for item in service["spec"]["ports"]} == open_ports
    # Ports of listeners, Service and container agree.
    assert {listener.port for listener in config.listeners.values()} | {
        config.metrics.port
    } == open_ports
    for name, message in config.advertised.items():
        assert (message.host, message.port) == ("broker-2.home.svc", config.listeners[name].port)
    # Certificates of listeners are mounted where the configuration reads them.
    mounted = {item["mountPath"] for item in container["volumeMounts"]}
    folders = {str(client.tls_directory) for client in config.clients if client.tls_directory}
    assert folders == {"/etc/tidemark/listeners/outside"}
    assert mounted >= {*folders, str(config.tls_directory), str(config.log_dir.parent)}


OUTSIDE = IN_PODS | {
    "operator": {"mayListNodes": True},
    "networkPolicy": {"externalFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
    "brokerPods": {
        "enabled": True,
        "listeners": {
            "OUT": {
                "port": 9095,
                "protocol": "SASL_SSL",
                "tlsSecret": "shown",
                "external": {
                    "type": "NodePort",
                    "nodeAddress": "ExternalIP",
                    "bootstrap": {"nodePort": 30000},
                    "brokers": [{"nodeId": 1, "nodePort": 30001, "annotations": {"a": "b"}}],
                },
            }
        },
    },
}


def test_external_listener_is_open_to_other_networks(
    tmp_path: Path,
) -> None:
    objects = Helm(tmp_path).template(CHART, OUTSIDE, namespace="home")
    pod = Broker.parse(named(objects, "Broker", "broker-1")).spec.pod
    assert pod is not None
    # Only the external listener is external in the parsed Broker.
    found = {listener.name: listener.external for listener in pod.listeners}
    assert found["PLAINTEXT"] is None
    assert found["OUT"] is not None
    given = OUTSIDE["brokerPods"]["listeners"]["OUT"]["external"]
    assert found["OUT"] == ExternalListener.model_validate(given)
    rules = named(objects, "NetworkPolicy", "tidemark-brokers")["spec"]["ingress"]
    # Clients inside and outside have different rules.
    peers = {item["port"]: rule.get("from") for rule in rules for item in rule["ports"]}
    assert peers[9092] == [{"podSelector": {}}]
    assert peers[9095] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
    # Without a list of networks anyone may connect, as with any node port.
    anybody = Helm(tmp_path).template(CHART, OUTSIDE | {"networkPolicy": {}}, namespace="home")
    rules = named(anybody, "NetworkPolicy", "tidemark-brokers")["spec"]["ingress"]
    (rule,) = [item for item in rules if item["ports"][0]["port"] == 9095]
    assert "from" not in rule


def test_brokers_in_pods_reach_the_operators_alongside_named_networks(tmp_path: Path) -> None:
    """A list with only the external brokers' network would otherwise cut off those in pods."""
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    rules = named(objects, "NetworkPolicy", "tidemark-operator")["spec"]["ingress"]
    (peers,) = [rule["from"] for rule in rules if rule["ports"][0]["port"] == "control"]
    selectors = [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
    stateful_set = objects_of(objects, "broker-1").stateful_set
    # The labels of broker pods that the operator creates.
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    assert any(selector.items() <= labels.items() for selector in selectors)
    assert {"ipBlock": {"cidr": "10.0.0.0/8"}} in peers


def test_helm_test_pod_reaches_no_external_listener(
    tmp_path: Path,
) -> None:
    """A rule without ports would open all of them."""
    # The only listener is external, so the pod has no port to test.
    listener = {"port": 9092, "protocol": "PLAINTEXT", "external": {"type": "NodePort"}}
    values = IN_PODS | {"brokerPods": {"enabled": True, "listeners": {"PLAINTEXT": listener}}}
    hooks = Helm(tmp_path).template_of_test(CHART, values, namespace="home")
    for policy in of_kind(hooks, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            assert rule["ports"], policy["metadata"]["name"]


@pytest.mark.parametrize("release", ["t" * 53, "my.tidemark"], ids=["long", "dots"])
def test_release_name_may_be_any_valid_name(release: str, tmp_path: Path) -> None:
    """A StatefulSet whose name has more than 52 characters makes no pod: the label with its
    revision would be longer than a label may be."""
    helm = Helm(tmp_path)
    # The longest name that Helm accepts.
    text = helm.run("template", release, str(CHART), "--kube-version", "1.36.0", values=EVERYTHING)
    objects = [body for body in yaml.safe_load_all(text) if body is not None]
    (stateful_set,) = of_kind(objects, "StatefulSet")
    assert len(stateful_set["metadata"]["name"]) <= POD_NAME_MAX
    for service in of_kind(objects, "Service"):
        assert re.fullmatch("[a-z][-a-z0-9]{0,61}[a-z0-9]", service["metadata"]["name"])


def test_names_that_look_like_yaml_values_stay_strings(tmp_path: Path) -> None:
    """Without quotes a Broker `no` was false, and a listener ON true."""
    # Without quotes YAML would read these names as booleans, numbers or null.
    listener = {"port": 9093, "protocol": "SSL", "tlsSecret": "123"}
    values = {
        "cluster": {"name": "on"},
        "brokers": {"no": {"nodeId": 1}},
        "brokerPods": {
            "enabled": True,
            "replicas": 1,
            "listeners": {"ON": listener},
            "storage": {"className": "1e3"},
            "priorityClassName": "null",
        },
    }
    helm = Helm(tmp_path)
    objects = helm.template(CHART, values, namespace="123")
    (cluster,), (broker,) = (of_kind(objects, kind) for kind in ("Cluster", "Broker"))
    assert (cluster["metadata"]["name"], broker["metadata"]["name"]) == ("on", "no")
    assert broker["spec"]["clusterRef"] == {"name": "on"}
    for pod in (broker["spec"]["pod"], cluster["spec"]["brokers"]["template"]):
        (found,) = [item for item in pod["listeners"] if item["port"] == 9093]
        assert (found["name"], found["tlsSecretRef"]) == ("ON", {"name": "123"})
        assert pod["storage"]["storageClassName"] == "1e3"
        assert pod["priorityClassName"] == "null"
    for body in [*objects, *helm.template_of_test(CHART, values, namespace="123")]:
        meta = body["metadata"]
        assert meta.get("namespace", "123") == "123", body["kind"]
        assert all(isinstance(item, str) for item in meta["labels"].values())


def test_null_removes_a_listener(tmp_path: Path) -> None:
    """Helm removes a default of the chart, and keeps null where the chart has none."""
    # Removing a default listener with null is Helm's documented way.
    values = IN_PODS | {
        "brokerPods": {
            "enabled": True,
            "listeners": {
                "PLAINTEXT": None,
                "GONE": None,
                "IN": {"port": 9093, "protocol": "PLAINTEXT"},
            },
        }
    }
    objects = Helm(tmp_path).template(CHART, values, namespace="home")
    pod = Broker.parse(named(objects, "Broker", "broker-1")).spec.pod
    assert pod is not None
    assert [listener.name for listener in pod.listeners] == ["IN"]
    rules = named(objects, "NetworkPolicy", "tidemark-brokers")["spec"]["ingress"]
    assert 9093 in {item["port"] for rule in rules for item in rule["ports"]}


def test_nodes_may_be_listed_only_on_request(tmp_path: Path) -> None:
    """This right is outside the namespace, so the installing user needs it as well."""
    objects = Helm(tmp_path).template(CHART, OUTSIDE, namespace="home")
    (role,), (binding,) = (of_kind(objects, f"ClusterRole{end}") for end in ("", "Binding"))
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (account,) = of_kind(objects, "ServiceAccount")
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["metadata"]["name"], "home")


def test_counted_brokers_are_declared_in_the_cluster(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, COUNTED, namespace="home")
    (cluster,) = of_kind(objects, "Cluster")
    assert not of_kind(objects, "Broker")
    assert cluster["spec"]["config"] == ON_S3["cluster"]["spec"]["config"]
    brokers = Cluster.parse(cluster).spec.brokers
    assert brokers is not None
    assert (brokers.replicas, brokers.racks) == (3, ("a", "b", "c"))
    # The template of counted brokers equals that of named ones.
    named_ones = Helm(tmp_path).template(CHART, IN_PODS, namespace="home")
    pod = Broker.parse(named(named_ones, "Broker", "broker-1")).spec.pod
    assert pod is not None
    key = "topology.kubernetes.io/zone"
    assert brokers.template == pod.model_copy(update={"rack_topology_key": key})


def test_network_policy_selects_the_operators_pods(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    spec = named(objects, "NetworkPolicy", "tidemark-brokers")["spec"]
    template = objects_of(objects, "broker-1").stateful_set["spec"]["template"]
    assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    names = {item["name"]: item["containerPort"] for item in container["ports"]}
    for rule in spec["ingress"]:
        # Rules refer to ports by name or by number.
        assert {item["port"] for item in rule["ports"]} <= {*names, *names.values()}


def test_export_jobs_are_reachable_by_operator_and_metrics(
    tmp_path: Path,
) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    # A Job as the operator creates it.
    run = ExportRunIdentity(name="x", namespace="home", uid="u", cluster="tidemark", number=1)
    selector = DesiredJob(order=Order(source={}, table={}), job={"image": "i"})
    template = export_job(run, selector)["spec"]["template"]
    spec = named(objects, "NetworkPolicy", "tidemark-exports")["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (rule,) = spec["ingress"]
    (port,) = template["spec"]["containers"][0]["ports"]
    assert rule["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    # Two readers: the operator, and Prometheus.
    operator = named(objects, "StatefulSet", "tidemark-operator")["spec"]["template"]
    peers = [item.get("podSelector", {}).get("matchLabels") for item in rule["from"]]
    assert any(
        labels and labels.items() <= operator["metadata"]["labels"].items() for labels in peers
    )
    monitor = named(objects, "PodMonitor", "tidemark-exports")["spec"]
    assert monitor["selector"] == spec["podSelector"]
    assert monitor["podMetricsEndpoints"][0]["port"] == port["name"]
    (argument,) = [
        item
        for item in operator["spec"]["containers"][0]["args"]
        if item.startswith("--export-image")
    ]
    assert argument == "--export-image=registry.example/pipeline:1"


def test_spark_applications_need_a_right_and_a_flag(tmp_path: Path) -> None:
    for allowed in (True, False):
        values = {"exports": {"sparkApplications": allowed}}
        objects = Helm(tmp_path).template(CHART, values, namespace="home")
        (role,) = of_kind(objects, "Role")
        groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
        assert ("sparkoperator.k8s.io" in groups) is allowed
        operator = named(objects, "StatefulSet", "tidemark-operator")["spec"]["template"]["spec"]
        flag = "--spark-applications=true"
        assert (flag in operator["containers"][0]["args"]) is allowed


def test_accounts_for_cloud_identities_are_annotated_and_used(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    accounts = {
        body["metadata"]["name"]: body["metadata"].get("annotations")
        for body in of_kind(objects, "ServiceAccount")
    }
    assert accounts["tidemark-brokers"] == {"example.test/role": "brokers"}
    assert accounts["jobs"] == {"example.test/l": "m"}
    # A token of the API server is mounted in neither, and no role is bound to them.
    bound = [
        subject["name"] for body in of_kind(objects, "RoleBinding") for subject in body["subjects"]
    ]
    assert not {"tidemark-brokers", "jobs"} & set(bound)
    pod = objects_of(objects, "broker-1").stateful_set["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (
        "tidemark-brokers",
        False,
    )
    (container,) = pod["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    operator = named(objects, "StatefulSet", "tidemark-operator")["spec"]["template"]["spec"]
    assert "--export-service-account=jobs" in operator["containers"][0]["args"]
    assert operator["containers"][0]["env"] == [{"name": "NO_PROXY", "value": ".svc"}]
    # Without these values, pods have the namespace's default account.
    plain = Helm(tmp_path).template(CHART, IN_PODS, namespace="home")
    assert len(of_kind(plain, "ServiceAccount")) == 1
    pod = objects_of(plain, "broker-1").stateful_set["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod


def test_each_right_of_the_operator_has_a_chapter(tmp_path: Path) -> None:
    """`make e2e CHAPTERS=rights` shows what fails without each of them."""
    (role,) = of_kind(Helm(tmp_path).template(CHART, EVERYTHING, namespace="home"), "Role")
    for rule in role["rules"]:
        # Each right has a chapter that proves its need.
        assert any(case.is_of(rule) for case in CASES), rule


def test_monitors_select_only_services_with_metrics(tmp_path: Path) -> None:
    objects = Helm(tmp_path).template(CHART, EVERYTHING, namespace="home")
    found: set[str] = set()
    pages: dict[str, list[str]] = {}
    for monitor in of_kind(objects, "ServiceMonitor"):
        endpoints = monitor["spec"]["endpoints"]
        pages[monitor["metadata"]["name"]] = [
            endpoint.get("path", "/metrics") for endpoint in endpoints
        ]
        message = {endpoint["relabelings"][0]["targetLabel"] for endpoint in endpoints[1:]}
        # Two pages of one pod need a label that distinguishes them.
        assert message <= {"metrics_path"}, "the label distinguishes two pages of a pod"
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        kept = [objects_of(objects, f"broker-{node}").service for node in range(3)]
        # Services of brokers are created by the operator.
        for service in [*of_kind(objects, "Service"), *kept]:
            if selector <= service["metadata"]["labels"].items():
                ports = {item["name"] for item in service["spec"]["ports"]}
                assert monitor["spec"]["endpoints"][0]["port"] in ports
                found.add(service["metadata"]["name"])
    assert found == {"tidemark-operator", "broker-0", "broker-1", "broker-2"}
    assert pages == {
        "tidemark-operator": ["/metrics"],
        "tidemark-brokers": ["/metrics", "/metrics/topics"],
    }
