"""Prometheus and its promtool, built once from their module as the other programs are.

Without the discoveries of clouds, which are half of the build; Kubernetes' stays, for the pods of
``make e2e``.
"""

from pathlib import Path

from tidemark_devcluster.toolchain.build import GoProgram, ensure_program
from tidemark_devcluster.toolchain.cache import read_sources
from tidemark_devcluster.toolchain.golang import required_go, required_module

MODULE = Path(__file__).with_name("go")
PUBLISHED = "github.com/prometheus/prometheus"
#: About; promtool is built after the other, and has most of it from there.
PACKAGES = {"prometheus": 1000, "promtool": 1300}


def program(name: str) -> GoProgram:
    """``prometheus`` or ``promtool``, at the version that the module pins."""
    sources = read_sources(MODULE)
    go_mod = sources["go.mod"].decode()
    return GoProgram(
        name=name,
        version=required_module(go_mod, PUBLISHED),
        needs_go=required_go(go_mod),
        packages=PACKAGES[name],
        tags=("remove_all_sd", "enable_kubernetes_sd"),
        package=f"{PUBLISHED}/cmd/{name}",
        folder=MODULE,
        sources=sources,
    )


def ensure_prometheus() -> Path:
    """The server's binary. Raises ToolchainError."""
    return ensure_program(program("prometheus"))


def ensure_promtool() -> Path:
    """Return promtool, built if necessary.

    Raises ToolchainError.
    """
    return ensure_program(program("promtool"))
