"""Makes the helper module of this folder importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small_tier import SmallTier


@pytest.fixture
def small_tier(tmp_path: Path) -> SmallTier:
    folder = tmp_path / "tier"
    folder.mkdir()
    return SmallTier(folder)
