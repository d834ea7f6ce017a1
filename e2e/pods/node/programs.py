"""The node's own binary, the pause program and what enforces policies, built once as the control
plane's is."""

from pathlib import Path

from tidemark_devcluster.toolchain.build import (
    CONTROLPLANE_TAGS,
    GoProgram,
    ensure_program,
    version_flags,
)
from tidemark_devcluster.toolchain.cache import read_sources
from tidemark_devcluster.toolchain.golang import required_go, required_module

MODULE = Path(__file__).parents[1] / "go"
# What the control plane's build has compiled is not compiled again.
NODE_PACKAGES = 1300
# Apart from the node's binary: its requirements are newer, and would rebuild all of that.
POLICIES = Path(__file__).parents[1] / "policies"
POLICIES_PACKAGES = 700


def _program(name: str, package: str, packages: int) -> GoProgram:
    sources = read_sources(MODULE)
    go_mod = sources["go.mod"].decode()
    version = required_module(go_mod, "k8s.io/kubernetes")
    return GoProgram(
        name=name,
        version=version,
        needs_go=required_go(go_mod),
        packages=packages,
        tags=CONTROLPLANE_TAGS,
        linker_flags=("-s", "-w", *version_flags(version)),
        package=package,
        folder=MODULE,
        sources=sources,
    )


def ensure_node() -> Path:
    """Every program of a node and its control plane. Raises ToolchainError."""
    return ensure_program(_program("tidemark-e2e-node", ".", NODE_PACKAGES))


def ensure_pause() -> Path:
    """The first process of each pod. Raises ToolchainError."""
    return ensure_program(_program("tidemark-e2e-pause", "./pause", 50))


def ensure_policies() -> Path:
    """Return the program that enforces NetworkPolicies.

    Raises ToolchainError.
    """
    sources = read_sources(POLICIES)
    go_mod = sources["go.mod"].decode()
    program = GoProgram(
        name="tidemark-e2e-policies",
        version=required_module(go_mod, "sigs.k8s.io/kube-network-policies"),
        needs_go=required_go(go_mod),
        packages=POLICIES_PACKAGES,
        folder=POLICIES,
        sources=sources,
    )
    return ensure_program(program)
