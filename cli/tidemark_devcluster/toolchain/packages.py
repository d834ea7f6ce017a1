"""Python packages that few commands need, installed when such a command first runs.

Spark takes a gigabyte with its dependencies, and most commands do not need it. In a checkout it is
installed into the virtual environment from the pinned set, as by ``make spark``.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.cache import locked, numba_environment

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements" / "spark.txt"
MODULES = ("numba", "numpy", "py4j", "pyarrow", "pyspark")
INSTALL = "pip install 'WHEEL[pipeline]', with the Tidemark wheel that you installed"


def ensure_spark(say: Callable[[str], None]) -> None:
    """Install Spark and the pipeline's other Python packages if they are missing.

    ``say``: receives the progress. Raises ToolchainError outside a checkout with a virtual
    environment, and if pip fails.
    """
    # Before numba is imported, which reads the variable once.
    os.environ.update(numba_environment())
    if _present():
        return
    if not REQUIREMENTS.exists() or sys.prefix == sys.base_prefix:
        raise ToolchainError(f"Spark's Python packages are missing; install them with: {INSTALL}")
    waiting = "waiting: another process installs Spark"
    with locked(Path(sys.prefix) / ".spark.lock", lambda: say(waiting)):
        if not _present():
            say("installing Spark (about 900 MB on disk, once)")
            try:
                pip_install(REQUIREMENTS)
            except ToolchainError as error:
                text = f"pip could not install Spark; retry with make spark:\n{error}"
                raise ToolchainError(text) from error


def _present() -> bool:
    importlib.invalidate_caches()
    return all(find_spec(name) for name in MODULES)


def pip_install(requirements: Path, *options: str) -> None:
    """Install pinned packages with hashes, without their dependencies.

    Raises ToolchainError with the end of pip's output.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--require-hashes", *options]
    done = subprocess.run(
        [*command, "--requirement", str(requirements)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ToolchainError((done.stderr or done.stdout).strip()[-2000:])
