"""What every reader of records may raise, and what of it is left once Spark has told it; apart, for
those that run without Spark's libraries."""

import re

#: What py4j says of whatever a call into the JVM has thrown; what that was comes below.
_OF_A_CALL = "An error occurred while calling"
_THROWN = r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (.+)$"


class DataLoss(RuntimeError):
    """Rows expired while the read was under way; set failOnDataLoss=false to go on without them."""


class ExportError(RuntimeError):
    """An export cannot go on; the message says what to do."""


class Unavailable(ExportError):
    """What an export needs does not answer, and may later."""


class CorruptData(ValueError):
    """Bytes that are no record batches; the message names topic, partition and offsets."""


def own_words(text: str) -> tuple[str, str]:
    """The name of our own error, and what it said, of one that Spark tells with all of its traces;
    else no name, and the innermost cause or the first line."""
    own = re.findall(r"^tidemark[\w.]*\.(\w+): (.+)$", text, re.MULTILINE)
    if own:
        name, said = own[-1]
        return str(name), str(said)
    first = text.strip().partition("\n")[0]
    if not first.startswith(_OF_A_CALL):
        return "", first
    causes = re.findall(_THROWN, text, re.MULTILINE)
    return "", causes[-1] if causes else first
