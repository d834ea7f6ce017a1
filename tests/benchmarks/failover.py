"""``make bench-failover``: how long a partition is unavailable after its leader fails.

The leader's process is killed (SIGKILL) and started again, ``--kills`` times. Then it is paused
(SIGSTOP) until writes resume elsewhere and continued, ``--pauses`` times. Printed for each, and at
the end as distributions: seconds without an acknowledgement (as a stock producer with acks=all
sees it), seconds until another leader was in the slice, and seconds until the broker was in sync
again. No figure is a pass or a failure; a record that fails is.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.outages import Outages, distribution, measure
from tests.benchmarks.results import Results
from tests.benchmarks.sides import OURS

NO_ACKNOWLEDGEMENT, ELECTED, IN_SYNC = "without an acknowledgement s", "elected s", "in sync s"


@dataclass(frozen=True, slots=True)
class LeaderFault:
    """A fault of the leading broker: ``inject`` and ``repair`` return seconds as :class:`Outages`
    counts them.
    """

    name: str
    inject: Callable[[Outages, int], float]
    repair: Callable[[Outages, int], float]


KILL = LeaderFault("leader killed", Outages.kill, Outages.start)
PAUSE = LeaderFault("leader paused", Outages.pause, Outages.resume)


def repeat(outages: Outages, fault: LeaderFault, times: int, results: Results) -> str:
    """Inject and repair the fault again and again; return the line of figures."""
    for number in range(1, times + 1):
        time.sleep(random.random())  # not always at the same point of a heartbeat's interval
        node = outages.row().leader
        began_s = time.monotonic()
        figures = {ELECTED: fault.inject(outages, node)}
        outages.progress()
        figures[NO_ACKNOWLEDGEMENT] = outages.writer.outage_s(began_s)
        figures[IN_SYNC] = fault.repair(outages, node)
        results.add(fault.name, OURS, number, figures)
        results.write()
        print(
            f"{fault.name}, {number} of {times}: broker {node}; another was elected after "
            f"{figures[ELECTED]:.2f} s, {figures[NO_ACKNOWLEDGEMENT]:.2f} s without an "
            f"acknowledgement, in sync again after {figures[IN_SYNC]:.2f} s",
            flush=True,
        )
    rounds = results.figures.get(fault.name, {}).get(OURS, {}).values()
    return f"{fault.name} {times} times  " + "  ".join(
        f"{name} {distribution([figures[name] for figures in rounds])}"
        for name in (NO_ACKNOWLEDGEMENT, ELECTED, IN_SYNC)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pauses", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=1000, help="with three replicas each")
    parser.add_argument(
        "--session-s", type=float, default=9.0, help="session timeout of brokers in seconds"
    )
    options = parser.parse_args()
    results = Results(
        benchmark="failover",
        rounds=options.kills,
        setting={"partitions": options.partitions, "session s": options.session_s},
    )

    # Kills come first: a paused broker may still be behind when the next fault begins.
    def faults(outages: Outages) -> str:
        kills = repeat(outages, KILL, options.kills, results)
        return f"{kills}  {repeat(outages, PAUSE, options.pauses, results)}"

    session = ("--session-timeout-s", str(options.session_s))
    measure(faults, "failover", partitions=options.partitions, operator_options=session)


if __name__ == "__main__":
    main()
