"""``make histories MINUTES=30``: rounds of clients and faults on a cluster of real processes, each
with a seed of its own, and a checker that reads what clients received.

Seeds count up from ``--first``; ``SEED=17`` repeats one round: the same clients and the same
faults, though not at the same microsecond. The history of a round with an anomaly is stored in
``build/histories``, with the nodes' logs; ``--history`` judges it again. ``--kafka`` disturbs
Apache Kafka's brokers instead: a finding there is Kafka's, or the checker's own mistake.
``--wrong`` has clients do something that must be found, ``--bug`` starts brokers with a broken rule
that must be found, and ``--fault`` names the only faults.
"""

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from tests.histories.checker import HistoryFigures, check
from tests.histories.events import HistoryEvent, load, store
from tests.histories.plan import ELECT, KILL, OLD_HEAD, PAUSE, RESTART, RESTORE, ROLL, WRONGS, make
from tests.histories.planted_bugs import BUGS, planted
from tests.histories.rounds import RoundFailed, run_round
from tests.histories.targets import (
    BROKERS,
    OPERATOR,
    DisturbedCluster,
    apache_kafka,
    served,
    tidemark,
)
from tests.lock_order import in_order

KEPT = Path("build") / "histories"
KINDS = (KILL, RESTART, PAUSE, ROLL, ELECT, RESTORE, OLD_HEAD)
#: A run ends after this number of rounds with anomalies, because most are the same.
FOUND_MAX = 5


def main() -> int:
    """1 where something was found that no level allows, or a round did not come to its end."""
    parser = argparse.ArgumentParser(prog="make histories")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="one round")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long a round is disturbed")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka's brokers")
    parser.add_argument("--wrong", choices=sorted(WRONGS), action="append", default=[])
    parser.add_argument("--bug", choices=sorted(BUGS), help="brokers with a broken rule")
    parser.add_argument("--fault", choices=KINDS, action="append", default=[])
    parser.add_argument("--keep", action="store_true", help="every history, whatever is found")
    parser.add_argument("--history", type=Path, help="judge a history that was kept, again")
    asked = parser.parse_args()
    if asked.history is not None:
        events = load(asked.history)
        report = check(events)
        print("\n".join((*report.proofs(events), report.line())))
        return int(bool(report.violations))
    what = "Apache Kafka" if asked.kafka else "a control plane, the operator"
    print(f"starting {what} and {BROKERS} brokers", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidemark-histories-") as folder:
        start = apache_kafka if asked.kafka else tidemark
        bug = planted(asked.bug) if asked.bug else nullcontext()
        # Brokers inherit the broken rule through their environment, so it is planted before they
        # start.
        with bug, start(Path(folder) / "cluster") as target:
            status = _Rounds(target, asked).go()
            if asked.bug:
                sys.exit(status)  # what the broken brokers leave in the tier is not looked at
            return status


class _Rounds:
    """One after the other on one cluster; figures add up."""

    def __init__(self, target: DisturbedCluster, asked: argparse.Namespace) -> None:
        self._target = target
        self._asked = asked
        self._total: HistoryFigures | None = None
        self._bad: list[int] = []

    def go(self) -> int:
        """Until the time is over."""
        asked = self._asked
        began_s = time.monotonic()
        seed = first = asked.first if asked.seed is None else asked.seed
        # At least one round, however short the time.
        while True:
            self._round(seed)
            seed += 1
            is_over = time.monotonic() - began_s > 60 * asked.minutes
            if is_over or asked.seed is not None or len(self._bad) >= FOUND_MAX:
                break
        passed_s = time.monotonic() - began_s
        figures = "no round came to its end" if self._total is None else self._total.line()
        seeds = f"seeds {first} to {seed - 1}"
        print(f"{passed_s:.0f} s, {seeds}, bad {self._bad or 'none'}: {figures}")
        return int(bool(self._bad))

    def _round(self, seed: int) -> None:
        asked = self._asked
        has_operator = OPERATOR in self._target.nodes
        # Everything that is random follows from the seed.
        plan = make(
            seed,
            asked.seconds,
            served(self._target.bootstrap),
            operator=has_operator,
            wrongs=tuple(asked.wrong),
            kinds=tuple(asked.fault),
        )
        # A target without some API gets fewer clients. The output has to say so, or the run would
        # look complete.
        if plan.left_out:
            print(f"not served yet, left out: {', '.join(plan.left_out)}", flush=True)
        try:
            events = run_round(self._target, plan)
        # Without a complete history there is nothing to judge. The part that exists is stored.
        except RoundFailed as error:
            print(f"seed {seed}: {error}", flush=True)
            self._bad.append(seed)
            self._keep(seed, error.events)
            return
        report = check(events)
        figures = report.all_figures()
        self._total = figures if self._total is None else self._total + figures
        print(f"seed {seed}: {report.line()}", flush=True)
        if report.violations:
            print("\n".join(report.proofs(events)), flush=True)
            self._bad.append(seed)
        # The history is needed to understand a finding, since the timing cannot be repeated.
        if report.violations or asked.keep:
            self._keep(seed, events)

    def _keep(self, seed: int, events: list[HistoryEvent]) -> None:
        """The history, and what the nodes said."""
        folder = KEPT / f"seed-{seed}"
        store(events, folder / "history.jsonl")
        for log in self._target.logs:
            shutil.copy(log, folder / f"{log.parent.name}-{log.name}")
        print(f"  kept in {folder}; again: make histories SEED={seed}", flush=True)


if __name__ == "__main__":
    sys.exit(in_order(main))
