"""Which provider `make e2e` takes, and what it says where there is none."""

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
def test_kind_is_taken_where_it_works_else_a_node(
    machine: Machine, provider: str, why: str
) -> None:
    choice = choose("", machine)
    assert choice.provider == provider
    assert why in choice.why


@pytest.mark.parametrize(
    ("wanted", "machine", "told"),
    [
        ("", BARE, "(?s)kind: .*must be installed.*node: it needs root.*sudo make e2e"),
        ("", replace(BARE, root=True), "node: .*Debian's packages"),
        ("node", LAPTOP, "PROVIDER=node: it needs Linux"),
        ("kind", DEBIAN, "PROVIDER=kind: kind and docker must be installed"),
    ],
    ids=["nothing", "another-linux", "node-on-a-laptop", "kind-on-debian"],
)
def test_what_cannot_be_here_is_said_with_what_to_do(
    wanted: str, machine: Machine, told: str
) -> None:
    with pytest.raises(NotHere, match=told):
        choose(wanted, machine)


def test_an_unknown_provider_is_no_fault_of_the_machine() -> None:
    with pytest.raises(CannotRun, match="one of kind, node") as refused:
        choose("minikube", DEBIAN)
    assert not isinstance(refused.value, NotHere)
