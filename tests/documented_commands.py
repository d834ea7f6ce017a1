"""The shell commands of documentation and examples, and what can be checked without running them.

A ``sh`` block contains commands only. A ``console`` block contains commands behind ``$`` and what
they print. :func:`problems` names what is wrong with a command: an option that ``tidemark`` does
not have, a target that the Makefile does not have, a file that does not exist.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.exceptions import TyperException

from tests.kubectl_commands import ROOT, ambiguous_names
from tidemark_cli.main import PluginCommands
from tidemark_cli.reference_page import commands as tidemark_commands
from tidemark_operator.resources.kinds import KINDS

_BLOCK = re.compile(r"(?ms)^( *)```(sh|bash|console)\n(.*?)^ *```")
_OPERATORS = {"|", "||", "&&", ";", "&", "(", ")", "<(", "{", "}"}
_REDIRECTIONS = {">", ">>", "<"}
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
#: An option that the shell leaves out where a variable is unset.
_OPTIONAL = re.compile(r"\$\{\w+:\+[^}]*\}")
#: The number of a stream before a redirection, and a redirection to another stream.
_DESCRIPTOR = re.compile(r"\s[12](?=>)(>&[12])?")
_FOLDERS = (
    "argocd", "broker_image", "charts", "cli", "crds", "docs", "examples", "operator", "pipeline",
    "policies", "tests",
)  # fmt: skip
_FILE = re.compile(rf"(?:\./)?(?:{'|'.join(_FOLDERS)})/[\w./-]*")
#: Programs of others whose arguments are not checked.
OTHERS = {
    "awk", "aws", "az", "base64", "buildah", "cat", "cd", "chmod", "connect-mirror-maker.sh", "cp",
    "curl", "debootstrap", "diff", "docker", "echo", "eval", "export", "gcloud", "git", "grep",
    "kafka-console-consumer.sh", "kafka-console-producer.sh", "kafka-consumer-groups.sh",
    "kafka-get-offsets.sh", "kafka-reassign-partitions.sh", "kafka-topics.sh", "kcat", "kill",
    "kind", "mkdir", "mv", "mvn", "openssl", "pip", "printf", "promtool", "rm", "sed", "sleep",
    "sort", "spark-submit", "tail", "tar", "timeout", "umask",
    # Functions that docs/how-to/migrate.md defines.
    "copied", "ends",
}  # fmt: skip
#: Resources of Kubernetes and of other projects that commands name.
OTHER_RESOURCES = {
    "configmap", "configmaps", "crd", "crds", "customresourcedefinitions", "deployment",
    "deployments", "events", "job", "jobs", "kafkatopics", "kafkausers", "lease", "leases",
    "namespace", "namespaces", "nodes", "persistentvolumeclaims", "pod", "pods", "pvc", "role",
    "secret", "secrets", "service", "serviceaccount", "services", "sparkapplications",
    "statefulset", "statefulsets", "storageclass",
    "customresourcedefinitions.apiextensions.k8s.io",
}  # fmt: skip
OWN_RESOURCES = {
    name for kind in KINDS for name in (*kind.short_names, f"{kind.plural}.tidemark.dev")
}
#: Verbs of kubectl, and whether the next word is a resource.
KUBECTL_VERBS = {
    "annotate": True, "apply": False, "create": False, "debug": False, "delete": True,
    "describe": True, "diff": False, "edit": True, "exec": False, "explain": True, "get": True,
    "label": True,
    "logs": False, "patch": True, "port-forward": False, "replace": False, "rollout": False,
    "run": False, "scale": True, "top": False, "wait": False,
}  # fmt: skip


class Documented(NamedTuple):
    """One command as words, without redirections; ``where`` is the page and the first line."""

    where: str
    words: tuple[str, ...]


def pages() -> list[Path]:
    """Return the pages whose commands are checked."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted([*found, *(ROOT / "examples").rglob("*.md")])


def documented() -> Iterator[Documented]:
    """Yield each command of each page; the parts of a pipe are commands of their own."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(3)) + 1
            for number, command in _commands(block[3], len(block[1]), block[2]):
                where = f"{page.relative_to(ROOT)}:{line + number}"
                yield from (Documented(where, words) for words in split(command))


def _commands(block: str, indent: int, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line within the block, text) of each command, continuation lines included."""
    text, began = "", 0
    here = ""  # the end of a here document whose lines belong to no command
    for number, line in enumerate(block.splitlines()):
        line = line[indent:]
        if here:
            here = "" if line.strip() == here else here
            continue
        if not text:
            if language == "console":
                if not line.startswith("$ "):
                    continue  # output
                line = line.removeprefix("$ ")
            began = number
        text = f"{text}\n{line}" if text else line
        # A command may span lines, by a backslash or within quotes.
        if line.endswith("\\") or not _is_complete(text):
            continue
        started = re.search(r"<<-?\s*['\"]?(\w+)", text)
        if started:
            here = started[1]
            text = text[: started.start()]
        yield began, text.replace("\\\n", " ")
        text = ""


def _is_complete(text: str) -> bool:
    """Tell whether every quotation is closed."""
    try:
        shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return False
    return True


def split(command: str) -> list[tuple[str, ...]]:
    """Return the simple commands of a line, without assignments and redirections."""
    command = _DESCRIPTOR.sub(" ", _OPTIONAL.sub("", command))
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        # Each part of a pipe or a list is a command of its own.
        if word in _OPERATORS:
            found.append([])
        elif word in _REDIRECTIONS:
            next(words, None)
        elif found[-1] or not _ASSIGNMENT.fullmatch(word):
            found[-1].append(word)
    return [tuple(words) for words in found if words]


# ---------------------------------------------------------------- checks


def problems(words: Sequence[str]) -> list[str]:
    """Return what is wrong with one command."""
    found = [
        f"{word} does not exist"
        for word in words
        if _FILE.fullmatch(word) and not (ROOT / word).exists()
    ]
    program = words[0].removeprefix(".venv/bin/")
    if program in OTHERS:
        return found
    check = _CHECKS.get(program)
    return found + (check(words[1:]) if check else [f"{program} is an unknown program"])


def _tidemark(arguments: Sequence[str]) -> list[str]:
    if arguments[:1] == ("kubectl",):
        return _kubectl(arguments[1:])
    # Commands have one or two words: `topic create`, `up`.
    known = _parsers()
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if name in known:
            return _parsed(known[name], f"tidemark {name}", arguments[length:])
    return [] if arguments[:1] in (("--help",), ("--version",)) else ["no such command"]


@cache
def _parsers() -> dict[str, Any]:
    return dict(tidemark_commands())


def _parsed(command: Any, name: str, arguments: Sequence[str]) -> list[str]:
    """Let the command's own parser read the arguments, without running it."""
    try:
        command.make_context(name, list(arguments))
    except typer.Exit:  # --help
        return []
    except TyperException as error:
        message = getattr(error, "format_message", error.__str__)
        return [message()]
    return []


def _kubectl(arguments: Sequence[str]) -> list[str]:
    if arguments[:1] == ("tidemark",):
        if arguments[1] not in PluginCommands.rows:
            return [f"kubectl tidemark has no command {arguments[1]}"]
        return _tidemark(arguments[1:])
    found = [f"{name} is ambiguous" for name in ambiguous_names(f"kubectl {' '.join(arguments)}")]
    words = without_flags(arguments)
    if not words:
        return [*found, "no verb"]
    verb, rest = words[0], words[1:]
    if verb not in KUBECTL_VERBS:
        return [*found, f"kubectl {verb} is unknown"]
    if KUBECTL_VERBS[verb] and rest:
        kinds = rest[0].split("/", 1)[0].split(",")
        unknown = [kind for kind in kinds if kind not in OWN_RESOURCES | OTHER_RESOURCES]
        found += [f"{kind} is an unknown resource" for kind in unknown]
    return found


#: Flags of kubectl whose value is the next word.
_WITH_VALUE = {
    "-n", "--namespace", "-o", "--output", "-l", "--selector", "-f", "--filename", "-p", "--patch",
    "--type", "--for", "--timeout", "--field-selector", "--context", "--kubeconfig", "-c",
    "--sort-by", "--raw", "--image", "--target", "-k",
}  # fmt: skip


def without_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of kubectl that are neither flags nor their values."""
    words, rest = [], iter(arguments)
    for word in rest:
        if word == "--":
            break
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            words.append(word)
    return words


def flags(arguments: Sequence[str]) -> set[str]:
    """Return the names of the flags, without their values and without what follows ``--``."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return {word.split("=", 1)[0] for word in own if re.match(r"--?[a-z]", word)}


def _helm(arguments: Sequence[str]) -> list[str]:
    charts = [word for word in arguments if word.startswith("charts/")]
    return [f"{c} is no chart" for c in charts if not (ROOT / c / "Chart.yaml").is_file()]


def _make(arguments: Sequence[str]) -> list[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([\w. -]+):(?!=)", text))
    known = {name for line in targets for name in line.split()}
    found = []
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        if is_variable and not re.search(rf"\b{name}\b", text):
            found.append(f"the Makefile has no variable {name}")
        if not is_variable and not word.startswith("-") and word not in known:
            found.append(f"the Makefile has no target {word}")
    return found


def _python(arguments: Sequence[str]) -> list[str]:
    scripts = [word for word in arguments if word.endswith(".py")]
    return [f"{name} does not exist" for name in scripts if not (ROOT / name).is_file()]


_CHECKS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "tidemark": _tidemark,
    "kubectl": _kubectl,
    "helm": _helm,
    "make": _make,
    "python": _python,
    "python3": _python,
}
