"""``tidemark consume``: print the records of a topic."""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tidemark_cli.common import fail
from tidemark_cli.option_groups import option_groups
from tidemark_cli.records.positions import BadPosition, ConsumeOptions, parse_choice
from tidemark_cli.records.session import BrokerOptions, run
from tidemark_cli.records.text import DIRECTIVES, BadTemplate, RecordFormat, json_record

if TYPE_CHECKING:
    from tidemark.records.decode import DecodedRecord

_DIRECTIVES = ", ".join(f"%{name} {meaning}" for name, meaning in DIRECTIVES.items())


@option_groups
def consume(
    *,
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    options: ConsumeOptions,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-F",
            metavar="TEMPLATE",
            help=f"Text of a record: {_DIRECTIVES}, %% a percent sign, \\n, \\t, \\xNN.",
        ),
    ] = "%v\\n",
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print keys, values and headers as they are, also binary ones."),
    ] = False,
    output: Annotated[
        Literal["text", "json", "none"],
        typer.Option(help="Output: text, one JSON object per line, or only the last line."),
    ] = "text",
    brokers: BrokerOptions,
) -> None:
    """Print the records of a topic, up to its present end.

    The topic is one of the local cluster, or of the brokers of --bootstrap. Records of one
    partition are in order. Control characters and bytes that are not UTF-8 are printed as escapes
    such as \\x1b, so each record stays on its line. JSON has such bytes as base64. Standard error
    gets a last line with the number of records, the time, the rate and the next offsets. Ctrl-C
    ends the run.
    """
    if options.group and options.partitions:
        fail("--group and --partition exclude each other: a group assigns the partitions itself")
    try:
        choice = parse_choice(options.offset)
        record_format = RecordFormat(format_, raw=raw)
    except (BadPosition, BadTemplate) as error:
        fail(f"--offset: {error}" if isinstance(error, BadPosition) else f"--format: {error}")

    def as_text(partition: int, record: "DecodedRecord") -> bytes:
        return record_format.text(topic, partition, record)

    def as_json(partition: int, record: "DecodedRecord") -> bytes:
        return json_record(topic, partition, record).encode() + b"\n"

    shows: dict[str, Callable[[int, DecodedRecord], bytes] | None]
    shows = {"text": as_text, "json": as_json, "none": None}
    where = brokers.target()
    # kio and the client are imported only now, so that --help is fast.
    from tidemark_cli.records.consuming import Consuming
    from tidemark_cli.records.session import reported, say

    consuming = Consuming(topic, options, choice, shows[output], say)
    # Records on a terminal are progress enough.
    quiet = output != "none" and sys.stdout.isatty()
    run(where, functools.partial(reported, consuming, quiet=quiet))
