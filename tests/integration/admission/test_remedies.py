"""Remedies in messages and documentation are accepted by the real API server."""

import re
import shlex

import pytest

from tests.integration.admission.api_server import AdmissionApi, AdmissionRefused, edited, topic
from tests.integration.admission.conftest import AdmissionControlPlane
from tests.kubectl_commands import commands
from tidemark_devcluster.controlplane.programs import run_kubectl
from tidemark_operator.resources.kinds import KINDS

_NAMES = {f"{kind.plural}.tidemark.dev" for kind in KINDS} | {
    name for kind in KINDS for name in kind.short_names
}
_WORD = re.compile(r"[\w.-]+")


def test_kubectl_knows_every_resource_that_a_command_names(
    api: AdmissionApi, control_plane: AdmissionControlPlane
) -> None:
    named = {
        word
        for command in commands()
        for word in _WORD.findall(command.text)
        if word in _NAMES or word.endswith(".tidemark.dev")
    }
    # A command that validates is not about a resource.
    resources = {word for word in named if not word.startswith("validate")}
    assert len(resources) > 5
    for resource in sorted(resources):
        # kubectl resolves short names and plurals with the server's discovery.
        ended = run_kubectl(["get", resource], kubeconfig=control_plane.kubeconfig)
        assert ended.returncode == 0, (resource, ended)


def test_topic_whose_name_is_taken_can_be_recreated_under_another_name(api: AdmissionApi) -> None:
    """The remedy of NameTaken, AdoptionRequired and NameRefused works."""
    made = api.create(topic(topicName="orders"))
    with pytest.raises(AdmissionRefused, match="immutable"):
        api.replace(edited(made, "spec.topicName", "orders-2"))
    api.delete(made)
    # The same object name with another topic name.
    recreated = topic(topicName="orders-2")
    recreated["metadata"]["name"] = made["metadata"]["name"]
    api.create(recreated)


@pytest.mark.parametrize(
    "annotation",
    [
        "tidemark.dev/adopt-topic-id=bwwKHlTUSlWLQz_z2aDwqg",
        "tidemark.dev/accept-copy=0:1:17",
        "tidemark.dev/rebuild-without=2",
        "tidemark.dev/paused=true",
        "tidemark.dev/deletion-protection=true",
    ],
)
def test_annotations_that_messages_name_are_accepted(
    api: AdmissionApi, control_plane: AdmissionControlPlane, annotation: str
) -> None:
    name = api.create(topic())["metadata"]["name"]
    command = f"annotate --overwrite topics.tidemark.dev/{name} {annotation}"
    ended = run_kubectl(shlex.split(command), kubeconfig=control_plane.kubeconfig)
    assert ended.returncode == 0, ended


def test_remedies_of_min_insync_replicas_are_accepted(api: AdmissionApi) -> None:
    # More in-sync replicas are required than exist.
    made = api.create(topic(replicationFactor=2, config={"min.insync.replicas": "3"}))
    # Both remedies of the message: lower the minimum, or raise the factor.
    lowered = api.replace(edited(made, "spec.config.min/insync/replicas", "2"))
    api.replace(edited(lowered, "spec.replicationFactor", 3))
