"""Go programs that are built once on the user's machine and stored in the user's cache folder."""

from tidemark_cli.toolchain.build import GoProgram, ensure_program
from tidemark_cli.toolchain.errors import ToolchainError
from tidemark_cli.toolchain.programs import ensure_controlplane, ensure_minio

__all__ = ["GoProgram", "ToolchainError", "ensure_controlplane", "ensure_minio", "ensure_program"]
