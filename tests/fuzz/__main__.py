"""``make fuzz SECONDS=600``: as many cases as fit, of all targets by turns.

Seeds run on from ``--first``; one seed is one case of one target, so a seed that is printed makes
the same case again. A finding is written to the corpus before the next case is tried; what ends the
whole process is left in ``corpus/running.case``, to be kept under a name that ends with ``.txt``.
"""

import argparse
import hashlib
import logging
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.targets import CORPUS, TARGETS, FuzzCase, FuzzTarget, new_case

_PROGRESS_S = 5.0
#: A run ends after this number of findings, because most are the same.
FINDINGS_MAX = 20


def main() -> int:
    """1 where something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where findings are kept")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    targets = [TARGETS[name] for name in asked.target or sorted(TARGETS)]
    return _Run(targets, asked.corpus).go(asked.first, asked.seconds)


class _Run:
    """Counts by target: tried, taken, found."""

    def __init__(self, targets: list[FuzzTarget], corpus: Path) -> None:
        self._targets = targets
        self._corpus = corpus
        self._tried: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._found: Counter[str] = Counter()

    def go(self, first: int, seconds: float) -> int:
        """Until the time is over."""
        began_s = shown_s = time.monotonic()
        seed = first
        self._corpus.mkdir(exist_ok=True)
        # One case after the other. Findings are stored as they occur, so a crash loses at most one.
        while (now_s := time.monotonic()) - began_s < seconds:
            if self._found.total() >= FINDINGS_MAX:
                break
            self._try(seed)
            seed += 1
            if now_s - shown_s >= _PROGRESS_S:
                shown_s = now_s
                print(f"  {now_s - began_s:4.0f} s  seed {seed}  {self._figures()}", flush=True)
        passed_s = time.monotonic() - began_s
        found = self._found.total()
        print(
            f"{self._tried.total():,} cases in {passed_s:.0f} s, seeds {first} to {seed - 1}: "
            f"{self._figures()}; {found} findings"
        )
        return 1 if found else 0

    def _try(self, seed: int) -> None:
        target = self._targets[seed % len(self._targets)]
        case = new_case(target, random.Random(seed))
        # Written before the case runs, so that a case that kills the process can be found.
        running = self._corpus / "running.case"
        running.write_text(case.text(), "utf-8")
        self._tried[target.name] += 1
        try:
            self._taken[target.name] += case.run()
        except Exception:  # noqa: BLE001 - whatever it raises is a finding
            self._found[target.name] += 1
            self._keep(case, seed)
        running.unlink()

    def _keep(self, case: FuzzCase, seed: int) -> None:
        text = case.text()
        name = f"{case.target}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
        (self._corpus / name).write_text(text, "utf-8")
        print(f"seed {seed}: kept as {name}", flush=True)
        traceback.print_exc(limit=-3, file=sys.stdout)

    def _figures(self) -> str:
        return ", ".join(
            f"{name} {self._taken[name]:,} of {tried:,} taken"
            for name, tried in sorted(self._tried.items())
        )


if __name__ == "__main__":
    sys.exit(main())
