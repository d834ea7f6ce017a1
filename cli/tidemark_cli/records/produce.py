"""``tidemark produce``: write records from standard input or options to a topic."""

import functools
import sys
from typing import Annotated, Literal

import typer

from tidemark_cli.common import fail, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.records.inputs import BadInput, RecordFields, parse_headers
from tidemark_cli.records.positions import TIME_FORMS, BadPosition, parse_time_ms
from tidemark_cli.records.session import BrokerOptions, run

#: Kafka's numbers of the codecs.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ACKS = {"all": -1, "1": 1}


@option_groups
def produce(
    *,
    topic: Annotated[str, typer.Argument(help="Topic to write to.")],
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="Value of the records.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the records.")] = None,
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", "-K", help="Text between key and value of a line, such as ':'."
        ),
    ] = "",
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of the records."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Partition. Default: by the key's hash."),
    ] = None,
    timestamp: Annotated[
        str, typer.Option(metavar="TIME", help=f"Timestamp of the records; {TIME_FORMS}.")
    ] = "",
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="Write null for an empty value.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-c",
            min=1,
            help="Number of records. Default: all lines or flights; with --value or --size one, "
            "or no limit with --rate.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records per second. Default: no limit.")
    ] = None,
    size: Annotated[
        int, typer.Option(min=0, max=2**30, help="Generate values of this many bytes.")
    ] = 0,
    flights: Annotated[
        bool,
        typer.Option("--flights", help="Write the demo's records, real flights of 2013 as JSON."),
    ] = False,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option("--compression", "-z", help="Compression of batches."),
    ] = "none",
    acks: Annotated[
        Literal["all", "1"],
        typer.Option(
            help="Replicas that acknowledge a record: all in sync, with repetitions that write no "
            "duplicates, or the leader (1)."
        ),
    ] = "all",
    brokers: BrokerOptions,
) -> None:
    """Write records to a topic: lines of standard input, or a value.

    The topic is one of the local cluster, or of the brokers of --bootstrap. A line is one record.
    Standard error gets a line of progress every five seconds, and a last line with the number of
    records, the time, the rate and the offsets. Ctrl-C ends the run after the records that were
    read.
    """
    sources = [name for name, given in _sources(value, size, flights=flights) if given]
    if len(sources) > 1:
        fail(f"{' and '.join(sources)} are two sources of records: use one of them")
    if sources and key_separator:
        fail("--key-separator is for lines of standard input: use --key")
    if key is not None and key_separator:
        fail("--key and --key-separator exclude each other")
    if flights and (key is not None or headers or timestamp or tombstone):
        fail("--flights has keys and timestamps of its own: omit --key, --header and --timestamp")
    with fail_on(BadInput, BadPosition):
        fields = RecordFields(
            None if key is None else key.encode(),
            parse_headers(headers or ()),
            parse_time_ms(timestamp) if timestamp else None,
            tombstone,
        )
    where = brokers.target()
    if not sources and sys.stdin.isatty():
        typer.echo("Type one record per line. Ctrl-D ends the input.", err=True)
    # kio and the client are imported only now, so that --help is fast.
    from tidemark_cli.records.producing import ProducePlan, Producing
    from tidemark_cli.records.session import reported

    one = bool(sources) and not flights and rate is None
    producing = Producing(
        ProducePlan(
            topic=topic,
            fields=fields,
            partition=partition,
            count=1 if count is None and one else count,
            rate=rate,
            codec=CODECS[compression],
            acks=_ACKS[acks],
            value=None if value is None else value.encode(),
            size=size,
            of_flights=flights,
            separator=key_separator.encode(),
        )
    )

    with fail_on(BadInput):
        run(where, functools.partial(reported, producing))


def _sources(value: str | None, size: int, *, flights: bool) -> list[tuple[str, bool]]:
    """Return the options that name a source of records, and whether they are given."""
    return [("--value", value is not None), ("--size", size > 0), ("--flights", flights)]
