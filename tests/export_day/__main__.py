"""A day of commits once a minute in compressed time; the last line has the figures of each format.

Ends with status 1 if records were lost or duplicated, or the files of a table are not bounded.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.export_day.day import run_day
from tests.table_jars import settings
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.session import local_session

#: Data files in a folder: those of two hours, and of the versions that are kept.
_FILES_MAX = 200
#: Other files of an Iceberg table, half of them checksums. Delta keeps its log for 30 days.
_OTHERS_MAX = {Format.ICEBERG: 1500}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--format", choices=[*Format], default=Format.ICEBERG)
    given = parser.parse_args()
    kind, begun = Format(given.format), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="export-day-") as folder,
        local_session("export day", short=True, settings=settings(kind)) as session,
    ):
        day = run_day(session, Path(folder), kind, commits=given.hours * 60, step=1)
    took_s = time.monotonic() - begun
    print(f"{kind}, {given.hours} h in {took_s:.0f} s: {day.text()}")
    is_bounded = day.files_most <= _FILES_MAX
    is_bounded &= day.others_most <= _OTHERS_MAX.get(kind, day.others_most)
    return 0 if is_bounded and not day.lost and not day.duplicated else 1


if __name__ == "__main__":
    sys.exit(main())
