"""Provider that `make e2e` selects, and the message if there is none."""

from dataclasses import replace

import pytest

from e2e.pods.providers import Machine, choose
from e2e.pods.unsupported_machine import CannotRun, NotHere

BARE = Machine(system="linux", root=False, debian=False, programs=frozenset(), docker_answers=False)
DEBIAN = replace(BARE, root=True, debian=True)
DOCKER = replace(BARE, programs=frozenset({"kind", "docker"}), docker_answers=True)
LAPTOP = replace(DOCKER, system="darwin")


@pytest.mark.parametrize(
    ("machine", "provider", "why"),
    [
        (DEBIAN, "node", "kind and docker must be installed"),
        (replace(DEBIAN, programs=frozenset({"docker"})), "node", "no kind, for kind must be"),
        (replace(DEBIAN, programs=DOCKER.programs), "node", "Docker does not answer"),
        (LAPTOP, "kind", "Docker answers"),
        (replace(DEBIAN, programs=DOCKER.programs, docker_answers=True), "kind", "answers"),
    ],
    ids=["debian", "docker-without-kind", "docker-that-is-silent", "laptop", "both"],
)
def test_kind_is_preferred_to_a_node(machine: Machine, provider: str, why: str) -> None:
    choice = choose("", machine)
    assert choice.provider == provider
    assert why in choice.why


@pytest.mark.parametrize(
    ("provider", "machine", "message"),
    [
        ("", BARE, "(?s)kind: .*must be installed.*node: it needs root.*sudo make e2e"),
        ("", replace(BARE, root=True), "node: .*Debian's packages"),
        ("node", LAPTOP, "PROVIDER=node: it needs Linux"),
        ("kind", DEBIAN, "PROVIDER=kind: kind and docker must be installed"),
    ],
    ids=["nothing", "another-linux", "node-on-a-laptop", "kind-on-debian"],
)
def test_unavailable_provider_is_reported_with_the_remedy(
    provider: str, machine: Machine, message: str
) -> None:
    with pytest.raises(NotHere, match=message):
        choose(provider, machine)


def test_an_unknown_provider_is_no_fault_of_the_machine() -> None:
    with pytest.raises(CannotRun, match="one of kind, node") as refused:
        choose("minikube", DEBIAN)
    assert not isinstance(refused.value, NotHere)
