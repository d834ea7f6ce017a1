"""All code that the project's programs load is permissively licensed.

kio depends on ``crc32c``, which is under the LGPL, and imports it in ``kio.records`` alone. Our
programs use ``tidemark.records`` for record batches, so none loads that module.
"""

import subprocess
import sys

from tidemark_cli.main import Commands

#: The modules that each program loads; the command line imports each command when it is invoked.
PROGRAMS = (
    ("tidemark_broker.main",),
    ("tidemark_operator.process",),
    ("tidemark_pipeline.source",),
    ("tidemark_cli.main", *{row.target.split(":")[0] for row in Commands.rows.values()}),
)
_LOAD = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def test_lgpl_module_of_kio_is_not_loaded() -> None:
    started = [
        (
            modules,
            subprocess.Popen(
                [sys.executable, "-c", _LOAD, *modules], stdout=subprocess.PIPE, text=True
            ),
        )
        for modules in PROGRAMS
    ]
    for modules, process in started:
        output, _ = process.communicate(timeout=60)
        loaded = set(output.split())
        assert loaded.issuperset(modules)
        assert not {name for name in loaded if name.split(".")[0] == "crc32c"}
        assert "kio.records" not in loaded
