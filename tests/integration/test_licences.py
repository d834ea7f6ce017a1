"""What our programs load is permissively licensed.

kio depends on ``crc32c``, which is under the LGPL, and imports it in ``kio.records`` alone; none of
our programs needs that module (record batches are ``tidemark.records``' business), so none loads
it.
"""

import subprocess
import sys

PROGRAMS = (
    "tidemark_broker.main",
    "tidemark_operator.main",
    "tidemark_pipeline.source",
    "tidemark_cli.main",
)
_LOAD = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sorted(sys.modules))"


def test_the_lgpl_module_of_kio_is_not_loaded() -> None:
    started = [
        (
            program,
            subprocess.Popen(
                [sys.executable, "-c", _LOAD, program], stdout=subprocess.PIPE, text=True
            ),
        )
        for program in PROGRAMS
    ]
    for program, process in started:
        output, _ = process.communicate(timeout=60)
        loaded = set(output.split())
        assert program in loaded
        assert not {name for name in loaded if name.split(".")[0] == "crc32c"}
        assert "kio.records" not in loaded
