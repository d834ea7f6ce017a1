"""Program of a job whose child keeps the job's standard output open, as Spark's JVM does.

The first run ends at once. Its child waits until the FIFO ``LEFT_OPEN`` is opened for writing.
A later run, which finds the file ``LEFT_OPEN.started``, waits for the end of its standard input.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    fifo = os.environ["LEFT_OPEN"]
    started = Path(f"{fifo}.started")
    print(json.dumps({"page": ""}), flush=True)
    if started.exists():
        sys.stdin.read()
        return
    started.touch()
    subprocess.Popen([sys.executable, "-c", f"open({fifo!r}).read()"], stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
