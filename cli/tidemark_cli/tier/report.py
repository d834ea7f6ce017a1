"""``tidemark spark report``: figures of a topic as one HTML page."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tidemark.message_text import count
from tidemark_cli.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_cli.tier.spark_topic import check_source
from tidemark_devcluster.tier import read_options, session_settings
from tidemark_devcluster.toolchain.errors import ToolchainError
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.java import JavaMissing, find_java


def report(
    topic: Annotated[str, typer.Argument(help="Topic to report on.")],
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Write a page with the rates, sizes, keys and tiers of a topic."""
    cluster = open_cluster(directory)
    try:
        find_java()
        ensure_spark(console.print)
        from tidemark_pipeline.jobs.report import figures
        from tidemark_pipeline.report.page import page, utc
        from tidemark_pipeline.session import local_session

        # Checked before Spark starts: a missing topic then fails in a second, with a short message.
        options = check_source(read_options(cluster, topic))
        when = utc(time.time_ns() // 1_000_000)
        with local_session(
            "tidemark report", log=cluster.layout.log("spark"), settings=session_settings(options)
        ) as session:
            report_figures = figures(session, options)
        output.write_text(page(report_figures, when), "utf-8")
    except (JavaMissing, ToolchainError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"the page cannot be written: {error}")
    console.print(
        f"{count(report_figures.rows, 'record')}: {output}", highlight=False, markup=False
    )
