"""Build the optional jar with which Spark reads the source ``tidemark`` as columns.

``python -m tools.columnar_jar [JAR]`` compiles ``pipeline/columnar`` against the jars of PySpark,
and needs a JDK. Without an argument the jar is written to PySpark's own folder of jars, where each
session finds it. The same sources, compiler and PySpark give the same bytes.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from tidemark_pipeline.java import JAVA_VERSION_MIN
from tidemark_pipeline.session import COLUMNAR_JAR

SOURCES = Path(__file__).parents[1] / "pipeline" / "columnar"
_JARS = Path(pyspark.__file__).parent / "jars"


def build(jar: Path) -> Path:
    """Write the jar and return its path. Raises SystemExit without a compiler, or if it fails."""
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which(str(Path(home) / "bin" / "javac") if home else "javac")
    if compiler is None:
        raise SystemExit(
            f"javac was not found in JAVA_HOME or on the PATH. Install a JDK {JAVA_VERSION_MIN} or "
            "newer (Debian: openjdk-17-jdk-headless)"
        )
    with tempfile.TemporaryDirectory(prefix="columnar-jar-") as name:
        folder = Path(name)
        options = ["--release", str(JAVA_VERSION_MIN), "-cp", str(_JARS / "*"), "-d", name]
        sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
        done = subprocess.run(
            [compiler, *options, *sources], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{compiler} failed:\n{done.stderr}")
        # The jar appears complete, as another session may look for it now.
        jar.parent.mkdir(parents=True, exist_ok=True)
        unfinished = jar.with_suffix(".part")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*.class")):
                # ZipInfo's fixed date makes the build reproducible.
                archive.writestr(
                    zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes()
                )
        unfinished.replace(jar)
    return jar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jar", type=Path, nargs="?", default=_JARS / COLUMNAR_JAR)
    print(build(parser.parse_args().jar))


if __name__ == "__main__":
    main()
