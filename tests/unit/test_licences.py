"""What our programs load is permissively licensed.

kio depends on ``crc32c``, which is under the LGPL, and imports it in ``kio.records`` alone; none of
our programs needs that module (record batches are ``tidemark.records``' business), so none loads it.
"""

import subprocess
import sys

import pytest

_LOAD = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sorted(sys.modules))"


@pytest.mark.parametrize(
    "module",
    [
        "tidemark_broker.main",
        "tidemark_operator.main",
        "tidemark_pipeline",
        "tidemark_pipeline.source",
        "tidemark_cli.main",
    ],
)
def test_the_lgpl_module_of_kio_is_not_loaded(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, module], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not {name for name in loaded if name.split(".")[0] == "crc32c"}
    assert "kio.records" not in loaded
