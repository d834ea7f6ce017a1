"""``make bench-restarts [RESTARTS=50]``: a producer that runs while leaders are restarted.

The broker that leads is restarted again and again, by turns as an upgrade does it (SIGTERM: leaders
move away first) and after a crash (SIGKILL). Printed for every restart, and at the end as a
distribution for both kinds: the longest time without an acknowledgement from the stop until the
broker is in sync again. A record that fails ends it with an error.
"""

import argparse
import time

from tests.benchmarks.outages import Outages, distribution, measure

KINDS = ("clean", "crash")


def restart_leader(outages: Outages, kind: str) -> tuple[int, float]:
    """(the broker, seconds without an acknowledgement)."""
    node = outages.row().leader
    began_s = time.monotonic()
    if kind == "clean":
        outages.cluster.local.stop_broker(node)
    else:
        outages.cluster.local.kill_broker(node)
    outages.start(node)
    return node, outages.writer.outage_s(began_s)


def restart_leaders(outages: Outages, restarts: int) -> str:
    """The line of figures."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(restarts):
        kind = KINDS[number % len(KINDS)]
        node, outage_s = restart_leader(outages, kind)
        seconds[kind].append(outage_s)
        print(
            f"restart {number + 1} of {restarts} ({kind}): broker {node}; "
            f"{outage_s:.2f} s without an acknowledgement",
            flush=True,
        )
        if outages.writer.errors:
            break
    return f"restarts {restarts}  without an acknowledgement, s: " + "  ".join(
        f"{kind} {distribution(seconds[kind])}" for kind in KINDS
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=50)
    restarts = parser.parse_args().restarts
    measure(lambda outages: restart_leaders(outages, restarts), "restarts")


if __name__ == "__main__":
    main()
