"""``make bench-failover [KILLS=100]``: how long a partition is unavailable after its leader is
killed.

The leader's process gets SIGKILL again and again, and is started again each time. Printed for every
kill, and at the end as a distribution: seconds without an acknowledgement (as a stock producer with
acks=all sees it), seconds until another leader was in the slice, and seconds from the start of the
killed broker until it was in sync again. No figure is a pass or a failure; a record that fails is.
"""

import argparse
import random
import time

from tests.benchmarks.outages import Outages, distribution, measure


def kill_leaders(outages: Outages, kills: int) -> str:
    """The line of figures."""
    without_s, elected_s, back_s = [], [], []
    for number in range(1, kills + 1):
        time.sleep(random.random())  # not always at the same point of a heartbeat's interval
        node = outages.row().leader
        began_s = time.monotonic()
        elected_s.append(outages.kill(node))
        outages.progress()
        without_s.append(outages.writer.outage_s(began_s))
        back_s.append(outages.start(node))
        print(
            f"kill {number} of {kills}: broker {node}; another was elected after "
            f"{elected_s[-1]:.2f} s, {without_s[-1]:.2f} s without an acknowledgement, "
            f"back in sync {back_s[-1]:.2f} s after its start",
            flush=True,
        )
    return (
        f"kills {kills}  without an acknowledgement, s: {distribution(without_s)}  "
        f"elected, s: {distribution(elected_s)}  back in sync, s: {distribution(back_s)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills = parser.parse_args().kills
    measure(lambda outages: kill_leaders(outages, kills), "failover")


if __name__ == "__main__":
    main()
