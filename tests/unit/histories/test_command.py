"""A stored history is checked again."""

import sys
from pathlib import Path

import pytest

from tests.histories.__main__ import main
from tests.histories.events import store
from tests.unit.histories.perfect_cluster import history
from tests.unit.histories.planted_violations import duplicate


def test_stored_history_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = history(1, 300)
    for spoilt, expected in ((events, 0), (duplicate(events), 1)):
        store(spoilt, tmp_path / "history.jsonl")
        monkeypatch.setattr(
            sys, "argv", ["histories", "--history", str(tmp_path / "history.jsonl")]
        )
        assert main() == expected
        output = capsys.readouterr().out
        assert ("anomalies: duplicate 1" if expected else "anomalies: none") in output.splitlines()[
            -1
        ]
        assert ("duplicate (idempotent): " in output) == bool(expected)
