"""Helm and kubectl themselves know the subcommands and flags that the documentation uses."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.documented_commands import documented, flags, without_flags
from tests.helm import Helm
from tidemark_devcluster.controlplane.programs import run_kubectl

pytestmark = pytest.mark.full

_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def test_helm_has_every_documented_subcommand_and_flag(tmp_path: Path) -> None:
    helm = Helm(tmp_path)

    # Each help text is read once, since every call starts a process.
    @cache
    def known(subcommand: str) -> set[str]:
        return set(_FLAG.findall(helm.run(subcommand, "--help")))

    found = [words for words in documented() if words.words[0] == "helm"]
    assert len(found) > 5
    unknown = {
        (command.where, flag)
        for command in found
        # A flag counts as known if the subcommand's help has it.
        for flag in flags(command.words[1:]) - known(command.words[1])
    }
    assert unknown == set()


def test_kubectl_has_every_documented_verb_and_flag(tmp_path: Path) -> None:
    @cache
    def known(*words: str) -> set[str]:
        done = run_kubectl(words, kubeconfig=tmp_path / "none")
        assert done.returncode == 0, done.stderr
        return set(_FLAG.findall(done.stdout))

    unknown = set()
    for where, words in documented():
        is_plugin = words[:2] == ("tidemark", "kubectl")
        if words[0] != "kubectl" and not is_plugin:
            continue
        arguments = words[2:] if is_plugin else words[1:]
        verb, *rest = without_flags(arguments)
        if verb == "tidemark":  # the project's own plugin
            continue
        # `create` has subcommands with flags of their own.
        subcommands = rest[:2] if verb == "create" else []
        own = known(verb, *subcommands, "--help")
        unknown |= {(where, flag) for flag in flags(arguments) - own - known("options")}
    assert unknown == set()
