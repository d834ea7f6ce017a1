"""Commands in documentation and messages reach Tidemark's resources, whatever else is installed."""

import pytest

from tests.kubectl_commands import ambiguous_names, commands


def test_every_command_names_resources_in_full_or_by_short_name() -> None:
    found = [*commands()]
    assert len(found) > 100
    assert [command for command in found if ambiguous_names(command.text)] == []


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("kubectl get topic", ["topic"]),
        ("kubectl -n kafka delete broker NAME", ["broker"]),
        ("kubectl annotate --overwrite user/alice a=b", [["user", "alice"][0]]),
        ("kubectl wait --for=condition=Ready topic/a topic/b --timeout=60s", ["topic", "topic"]),
        ("kubectl get topics.kafka.example,clusters -o yaml", ["topics.kafka.example", "clusters"]),
        ("kubectl get -o yaml Topics", ["Topics"]),
        ("kubectl explain topic.spec", ["topic.spec"]),
        ("kubectl get topics.tidemark.dev orders", []),
        ("kubectl get tmt,tmb", []),
        ("kubectl describe pod topic", []),
        ("kubectl label pvc users a=b", []),
        ("kubectl apply --filename topic/x.yaml", []),
    ],
)
def test_ambiguous_names_are_found(command: str, names: list[str]) -> None:
    assert ambiguous_names(command) == names
