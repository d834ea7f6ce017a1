"""`make e2e` finds objects on a real API server under the names that kubectl accepts."""

import json
from typing import Any

import pytest

from e2e.pods.commands import CommandFailed
from e2e.pods.kubernetes import Kubernetes, wait_for
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.toolchain.build import ensure_controlplane

WHERE = "kube-system"
ALL_OF_IT = "--show-managed-fields"
GUSTS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gusts.e2e.test"},
    "spec": {
        "group": "e2e.test",
        "scope": "Namespaced",
        "names": {"plural": "gusts", "singular": "gust", "kind": "Gust"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


@pytest.fixture
def kubernetes(control_plane: ControlPlane) -> Kubernetes:
    """Return kubectl and the client that replaces it for reads."""
    return Kubernetes([str(ensure_controlplane()), "kubectl"], control_plane.kubeconfig)


def shown(kubernetes: Kubernetes, *words: str) -> dict[str, Any]:
    """Return the objects as kubectl shows them."""
    # Managed fields included, so that the comparison is exact.
    text = kubernetes.run("--namespace", WHERE, "get", *words, "--output", "json", ALL_OF_IT)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "what",
    [
        ("namespace", WHERE),
        (f"namespaces/{WHERE}",),
        ("role", "extension-apiserver-authentication-reader"),
        ("roles.rbac.authorization.k8s.io/extension-apiserver-authentication-reader",),
    ],
    ids=["singular", "plural", "namespaced", "with its group"],
)
def test_object_equals_kubectls_output(kubernetes: Kubernetes, what: tuple[str, ...]) -> None:
    assert kubernetes.get(WHERE, *what) == shown(kubernetes, *what)


def test_objects_of_several_kinds_equal_kubectls_output(kubernetes: Kubernetes) -> None:
    kinds = ("namespaces", "roles")
    expected = [body for kind in kinds for body in shown(kubernetes, kind)["items"]]
    found = kubernetes.all(WHERE, *kinds)
    assert {body["kind"] for body in found} == {"Namespace", "Role"}
    # In the order of the kinds, as kubectl lists them.
    assert found == expected


def test_kind_defined_later_is_found(kubernetes: Kubernetes) -> None:
    # The client's discovery has no such kind yet.
    with pytest.raises(CommandFailed, match=r"knows no gusts\.e2e\.test"):
        kubernetes.names(WHERE, "gusts.e2e.test")
    kubernetes.apply(GUSTS)
    try:
        # The server takes a moment to serve a definition.
        wait_for("gusts", lambda: ", ".join(kubernetes.names(WHERE, "gusts.e2e.test")), 30)
    finally:
        kubernetes.run("delete", "customresourcedefinition", "gusts.e2e.test")


def test_refusal_has_the_servers_message(kubernetes: Kubernetes) -> None:
    with pytest.raises(CommandFailed, match=r"404: .*roles.* .nobodys. not found"):
        # The server's own message, with the kind and the name.
        kubernetes.get(WHERE, "role", "nobodys")
    assert kubernetes.api.raw("/readyz?exclude=etcd") == "ok"
