"""A cluster, Spark, one scenario after the other: ``make pipeline-proof [RECORDS=5000000] [TIER=s3]
[ONLY=…]``. The last line has the figures; an exit status of 0 says that all of them held."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.conformance.local_cluster import run_cluster
from tests.pipeline_proof.scenarios import BROKERS, Proof, ProofFailed, Size
from tests.table_jars import settings as settings_of
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.session import local_session

#: Spark tries a task again; on one machine it does not by itself.
_MASTER = "local[2, 4]"


def main() -> None:
    """Raises SystemExit where Spark has not read what is there."""
    parser = argparse.ArgumentParser(prog="make pipeline-proof", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--tier", choices=("directory", "s3"), default="directory")
    parser.add_argument("--only", default="", help="scenarios whose name has this")
    given = parser.parse_args()
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - began_s:5.0f} s  {text}", flush=True)

    settings = settings_of(*Format) | {"spark.master": _MASTER}
    # Segments grow with the number of records, so there are always several.
    size = Size(given.records, max(1024 * 1024, given.records * 3))
    held = 0
    with tempfile.TemporaryDirectory(prefix="pipeline-proof-") as name:
        folder = Path(name)
        (folder / "cluster").mkdir()
        # One cluster and one driver for all scenarios, which follow each other on the same topic.
        with (
            run_cluster(folder / "cluster", brokers=BROKERS, tier=given.tier) as cluster,
            local_session("proof", log=folder / "spark.log", settings=settings) as session,
        ):
            proof = Proof(session, cluster, folder, size, say)
            say(proof.produced())
            for scenario in scenarios(proof):
                # The name of a scenario's function is its title in the output.
                title = scenario.__name__.replace("_", " ")
                if given.only not in title:
                    continue
                try:
                    found = scenario()
                except ProofFailed as error:
                    raise SystemExit(f"FAILED  {title}: {error}") from None
                held += 1
                say(f"ok  {title}: {found}")
            records = proof.truth.records
    print(
        f"pipeline-proof: {held} scenarios on {records:,} records, tier {given.tier}: what Spark "
        f"read is what confluent-kafka read; {time.monotonic() - began_s:.0f} s"
    )


def scenarios(proof: Proof) -> list[Callable[[], str]]:
    """In the order in which they go together."""
    return [
        proof.flights,
        proof.poisoned,
        proof.undisturbed,
        proof.worker_killed,
        proof.leader_killed,
        proof.brokers_rolled,
        proof.no_broker,
        proof.busy_store,
        proof.damaged,
        proof.exported,
        proof.expired,
        proof.deleted,
    ]


if __name__ == "__main__":
    main()
