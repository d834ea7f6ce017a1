"""``tidemark produce``: write records from standard input or options to a topic."""

import functools
import sys
from typing import Annotated

import typer

from tidemark_cli.common import fail, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.records.inputs import BadInput, ProduceOptions
from tidemark_cli.records.positions import BadPosition
from tidemark_cli.records.session import BrokerOptions, run


@option_groups
def produce(
    *,
    topic: Annotated[str, typer.Argument(help="Topic to write to.")],
    options: ProduceOptions,
    brokers: BrokerOptions,
) -> None:
    """Write records to a topic: lines of standard input, or a value.

    The topic is one of the local cluster, or of the brokers of --bootstrap. A line is one record.
    Standard error gets a line of progress every five seconds, and a last line with the number of
    records, the time, the rate and the offsets. Ctrl-C ends the run after the records that were
    read.
    """
    given = options.sources()
    if len(given) > 1:
        fail(f"{' and '.join(given)} are two sources of records: use one of them")
    if given and options.key_separator:
        fail("--key-separator is for lines of standard input: use --key")
    if options.key is not None and options.key_separator:
        fail("--key and --key-separator exclude each other")
    if options.flights and (
        options.key is not None or options.headers or options.timestamp or options.tombstone
    ):
        fail("--flights has keys and timestamps of its own: omit --key, --header and --timestamp")
    with fail_on(BadInput, BadPosition):
        fields = options.fields()
    where = brokers.target()
    if not given and sys.stdin.isatty():
        typer.echo("Type one record per line. Ctrl-D ends the input.", err=True)
    # kio and the client are imported only now, so that --help is fast.
    from tidemark_cli.records.producing import Producing
    from tidemark_cli.records.session import reported

    with fail_on(BadInput):
        run(where, functools.partial(reported, Producing(topic, options, fields)))
