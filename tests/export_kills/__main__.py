"""Loop of killed exports over a tier of known records that grows.

Each run of an export is killed with SIGKILL, with its process group, at a step of a commit or at
any time; the next run continues with the same table. With ``--executors`` runs are on a cluster of
two workers. Others lose their executors at each step, first by SIGKILL and in the next commit by
the drain of their nodes, and continue. Then one run is suspended while another job takes over. The
table of each run that ended is compared with the records, by count and digest. The last line has
the figures.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.export_kills.job import SUPERSEDED
from tests.export_kills.records import batch, digest, expected
from tests.export_kills.steps import (
    NO_STEP,
    STANDING_STILL,
    STRUCK,
    ExportStep,
    StepKind,
    StruckPart,
    steps,
)
from tests.spark_cluster import SparkCluster, spark_cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))

from small_tier import SmallTier

#: Enough for four commits of a run.
_GROWTH = 80
_RUN_S = 600.0
_LOG_CHARS = 4000
_ROOT = Path(__file__).parents[2]


class Loop:
    """The tier, the table, and what happened so far."""

    def __init__(
        self, kind: StepKind, folder: Path, chance: random.Random, cluster: SparkCluster | None
    ) -> None:
        self.kind = kind
        self.cluster = cluster
        self.tier = SmallTier(folder / "tier", uuid.uuid4())
        self.warehouse = folder / "warehouse"
        #: Standard error of the last run.
        self.log = folder / "run.log"
        self.chance = chance
        self.ended: Counter[str] = Counter()
        self.slowest_s = 0.0

    def grow(self) -> None:
        # New records in the tier, so that the next run has something to commit.
        start = self.tier.loaded.head.next_copy_offset
        self.tier.copy([b""] * _GROWTH, batches=[batch(start, _GROWTH)])

    def start(self, step: str, *, is_struck: bool = False) -> "subprocess.Popen[str]":
        on_cluster = [] if self.cluster is None else [self.cluster.master]
        if is_struck:
            on_cluster.append("struck")
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.export_kills.job", self.kind.value),
                    *(str(self.tier.path), str(self.warehouse), step, *on_cluster),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_ROOT,
                start_new_session=True,
            )

    def failure(self, text: str) -> SystemExit:
        """Return an error with the end of the last run's log."""
        return SystemExit(f"{text}\n{self.log.read_text('utf-8', 'replace')[-_LOG_CHARS:]}")

    def kill_at(self, step: ExportStep) -> None:
        self.grow()
        begun = time.monotonic()
        run = self.start(NO_STEP if step is ExportStep.ANY_TIME else step.value)
        try:
            # At a random time of a run, measured by the slowest one. Others kill themselves at the
            # step.
            if step is ExportStep.ANY_TIME:
                run.wait(self.chance.uniform(0.3, 1.0) * self.slowest_s)
            else:
                run.wait(_RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            if step is not ExportStep.ANY_TIME:
                raise self.failure(f"the run did not come {step.value}") from None
        run.communicate()
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        killed = run.returncode == -signal.SIGKILL
        self.ended[f"killed {step.value}" if killed else "done before it was killed"] += 1
        # A step that was not reached would test nothing.
        if not killed and step is not ExportStep.ANY_TIME:
            raise self.failure(
                f"the run was to be killed {step.value}, and ended: {run.returncode}"
            )

    def strike_executors_at(self, step: ExportStep) -> None:
        """Run an export that loses its executors twice; it has to continue and to end well."""
        self.grow()
        run = self.start(step.value, is_struck=True)
        output = self.output(run)
        found = [line for line in output.splitlines() if line.startswith(STRUCK)]
        for victim in StruckPart:
            some = [line for line in found if line.startswith(f"{STRUCK} {victim.value}")]
            if run.returncode or not some or some[0].endswith(" 0"):
                raise self.failure(
                    f"the run whose {victim.value} {step.value} did not continue: "
                    f"{run.returncode} {found}"
                )
            self.ended[f"{victim.value} {step.value}"] += 1
            print(f"{self.kind.value}: its {victim.value} {step.value}", flush=True)
        self.check(output)

    def overtake(self) -> None:
        self.grow()
        # It stops itself with SIGSTOP inside a commit. Another run overtakes it meanwhile.
        first = self.start(ExportStep.OVERTAKEN.value)
        try:
            assert first.stdout is not None
            if first.stdout.readline().strip() != STANDING_STILL:
                raise self.failure("the run that was to be suspended has ended")
            self.finish()
            os.kill(first.pid, signal.SIGCONT)
            # The older job has to notice that the table has continued without it, and must not
            # commit.
            if first.wait(_RUN_S) != SUPERSEDED:
                raise self.failure(f"the older job did not notice: {first.returncode}")
            self.ended[ExportStep.OVERTAKEN.value] += 1
        finally:
            if first.poll() is None:
                os.killpg(first.pid, signal.SIGKILL)
            first.communicate()

    def finish(self) -> int:
        """A run to the end; the rows."""
        run = self.start(NO_STEP)
        output = self.output(run)
        if run.returncode:
            raise self.failure(f"a run that was not killed has failed: {run.returncode}")
        return self.check(output)

    def output(self, run: "subprocess.Popen[str]") -> str:
        """Return the output of a run that ends by itself; a late one is killed."""
        try:
            return run.communicate(timeout=_RUN_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            raise self.failure(f"a run did not end in {_RUN_S:.0f} s") from None

    def check(self, output: str) -> int:
        """Compare the table that a run has printed with the topic; return the rows."""
        found = json.loads(output.splitlines()[-1])
        end = self.tier.loaded.head.next_copy_offset
        known = expected(end, self.kind.mode)
        # Count and digest over all rows: nothing lost, nothing twice, nothing changed.
        if found != {"rows": len(known), "digest": digest(known)}:
            raise self.failure(f"the table is not the topic: {found}, and {len(known)} records")
        return len(known)


def main() -> None:
    """Raises SystemExit where the table is not what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often each step")
    names = [kind.value for kind in StepKind]
    parser.add_argument("--table", choices=[*names, "all"], default=names[0])
    parser.add_argument(
        "--executors",
        action="store_true",
        help="on two workers, whose executors are killed and drained, too",
    )
    given = parser.parse_args()
    for name in names if given.table == "all" else [given.table]:
        run(StepKind(name), given.rounds, on_cluster=given.executors)


def run(kind: StepKind, rounds: int, *, on_cluster: bool) -> None:
    """Kill one table's export at each step, ``rounds`` times."""
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="export-kills-")))
        (folder / "tier").mkdir()
        cluster = stack.enter_context(spark_cluster(folder, cores=2)) if on_cluster else None
        loop = Loop(kind, folder, random.Random(0), cluster)
        # After every round one run ends by itself, and the table is compared.
        for number in range(rounds):
            for step in steps(kind):
                loop.kill_at(step)
                print(
                    f"{kind.value}, round {number + 1} of {rounds}: killed {step.value}", flush=True
                )
                if cluster is not None and step is not ExportStep.ANY_TIME:
                    loop.strike_executors_at(step)
            print(f"{kind.value}, round {number + 1} of {rounds}: {loop.finish()} rows", flush=True)
        loop.overtake()
        rows = loop.finish()
    ended = "; ".join(f"{count} {what}" for what, count in sorted(loop.ended.items()))
    took_s = time.monotonic() - begun
    print(f"{kind.value}: {rows} rows, all that there should be ({ended}) in {took_s:.0f} s")


if __name__ == "__main__":
    main()
