"""Commands in documentation and examples exist, with their options, targets and files."""

import pytest

from tests.documented_commands import documented, problems, split

COMMANDS = list(documented())


def test_there_are_commands_of_every_program() -> None:
    programs = {command.words[0] for command in COMMANDS}
    assert {"tidemark", "kubectl", "helm", "make"} <= programs
    assert len(COMMANDS) > 200


def test_every_documented_command_is_valid() -> None:
    found = [
        f"{command.where}: {problem}: {' '.join(command.words)}"
        for command in COMMANDS
        for problem in problems(command.words)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("tidemark upp", "no such command"),
        ("tidemark up --colour", "No such option"),
        ("tidemark up --brokers none", "integer"),
        ("tidemark spark export orders", "--table"),
        ("tidemark kubectl get topic", "ambiguous"),
        ("kubectl tidemark restore", "no command restore"),
        ("kubectl fetch pods", "unknown"),
        ("kubectl get brokers", "ambiguous"),
        ("kubectl get gadgets", "unknown resource"),
        ("kubectl apply -f examples/nothing.yaml", "does not exist"),
        ("helm install tidemark charts/tide", "no chart"),
        ("make upp", "no target"),
        ("make up COLOUR=red", "no variable"),
        ("python examples/nothing.py", "does not exist"),
        ("fetch pods", "unknown program"),
    ],
)
def test_invalid_commands_are_found(command: str, problem: str) -> None:
    (words,) = split(command)
    assert any(problem in found for found in problems(words)), problems(words)


@pytest.mark.parametrize(
    "command",
    [
        "tidemark up --brokers 4 --tier s3",
        "tidemark spark export orders --table db.orders --continuous",
        "tidemark kubectl get tmt -o yaml",
        "kubectl tidemark top --once",
        "kubectl --namespace tidemark get tmc,tmb",
        "make up TIER=s3",
    ],
)
def test_valid_commands_pass(command: str) -> None:
    (words,) = split(command)
    assert problems(words) == []


def test_pipes_redirections_and_assignments_are_split() -> None:
    command = 'A=1 tidemark status "x y" 2>&1 | base64 -d > out && kubectl get tmt # all'
    assert split(command) == [
        ("tidemark", "status", "x y"),
        ("base64", "-d"),
        ("kubectl", "get", "tmt"),
    ]
