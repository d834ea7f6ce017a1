"""``python -m tools.interpreters``: check the interpreter that an environment is created from.

``make`` calls it before it installs packages, so it needs none. The lists of packages have wheels
for CPython only. ``--sources`` compiles all sources with the other tested versions that are
installed, which finds syntax that one of them refuses or deprecates.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COMPILE = """\
import sys, tokenize
for name in sys.stdin.read().split("\\0"):
    with tokenize.open(name) as file:
        compile(file.read(), name, "exec", dont_inherit=True)
"""


def versions_tested() -> tuple[str, ...]:
    """Return the versions that the package's classifiers name, oldest first."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text))


def complaint(implementation: str, *, has_gil: bool) -> str | None:
    """Return why no package of the lists can be installed, or None."""
    if implementation == "cpython" and has_gil:
        return None
    found = "a free-threaded Python" if implementation == "cpython" else implementation
    return (
        f"Tidemark needs CPython with its global lock, and this is {found}: its packages have no "
        f"wheels for it. Use another one: make PYTHON=python{versions_tested()[-1]}"
    )


def notice(version: tuple[int, int]) -> str | None:
    """Return a notice about a version that is newer than the tested ones, else None."""
    tested = versions_tested()
    if version <= tuple(map(int, tested[-1].split("."))):
        return None
    found, newest = f"{version[0]}.{version[1]}", tested[-1]
    return (
        f"Python {found} is not tested: tests run with {', '.join(tested)}. If an installation or "
        f"a command fails, use: make PYTHON=python{newest} VENV=.venv-{newest}"
    )


def check_sources(version: str) -> bool:
    """Compile all sources with ``python{version}``, warnings as errors. Return whether it works."""
    program = f"python{version}"
    # A program of this name may be a launcher of a version that is not installed.
    try:
        subprocess.run([program, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"{program} is not installed: its check of the sources is skipped")
        return True
    files = subprocess.check_output(["git", "ls-files", "-z", "*.py"], cwd=ROOT)
    command = [program, "-W", "error", "-c", _COMPILE]
    return not subprocess.run(command, check=False, cwd=ROOT, input=files.strip(b"\0")).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", action="store_true")
    if parser.parse_args().sources:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        others = [version for version in versions_tested() if version != running]
        failed = [version for version in others if not check_sources(version)]
        sys.exit(bool(failed))
    reason = complaint(
        sys.implementation.name, has_gil=not sysconfig.get_config_var("Py_GIL_DISABLED")
    )
    if reason:
        sys.exit(reason)
    text = notice(sys.version_info[:2])
    if text:
        print(text)


if __name__ == "__main__":
    main()
