"""`make e2e` finds its objects on a real API server under the names that kubectl accepts."""

import json
from typing import Any

import pytest

from e2e.pods.commands import CommandFailed
from e2e.pods.kubernetes import Kubernetes, wait_for
from tidemark_cli.controlplane.launcher import ControlPlane
from tidemark_cli.toolchain.programs import ensure_controlplane

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
def test_an_object_is_what_kubectl_shows(kubernetes: Kubernetes, what: tuple[str, ...]) -> None:
    assert kubernetes.get(WHERE, *what) == shown(kubernetes, *what)


def test_so_are_all_of_some_kinds_each_with_its_own(kubernetes: Kubernetes) -> None:
    kinds = ("namespaces", "roles")
    expected = [body for kind in kinds for body in shown(kubernetes, kind)["items"]]
    found = kubernetes.all(WHERE, *kinds)
    assert {body["kind"] for body in found} == {"Namespace", "Role"}
    assert found == expected


def test_a_kind_that_is_defined_later_is_found(kubernetes: Kubernetes) -> None:
    with pytest.raises(CommandFailed, match=r"knows no gusts\.e2e\.test"):
        kubernetes.names(WHERE, "gusts.e2e.test")
    kubernetes.apply(GUSTS)
    try:
        # The server takes a moment to serve a definition.
        wait_for("gusts", lambda: ", ".join(kubernetes.names(WHERE, "gusts.e2e.test")), 30)
    finally:
        kubernetes.run("delete", "customresourcedefinition", "gusts.e2e.test")


def test_refusal_is_reported_in_the_words_of_the_server(kubernetes: Kubernetes) -> None:
    with pytest.raises(CommandFailed, match=r"404: .*roles.* .nobodys. not found"):
        kubernetes.get(WHERE, "role", "nobodys")
    assert kubernetes.api.raw("/readyz?exclude=etcd") == "ok"
