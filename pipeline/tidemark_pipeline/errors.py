"""Errors of all readers of records, and their extraction from Spark's messages.

The module is separate for programs that run without Spark's libraries.
"""

import re

#: First line of py4j's message for any exception in the JVM; the exception's own text is below it.
_PY4J_PREFIX = "An error occurred while calling"
_EXCEPTION_LINE = r"^(?:Caused by: |: )?[\w.$]+(?:Exception|Error): (.+)$"


class DataLoss(RuntimeError):
    """Rows that expired during the read; failOnDataLoss=false skips them."""


class ExportError(RuntimeError):
    """Export that cannot continue; the message says what to do."""


class DependencyUnavailable(ExportError):
    """Service that an export needs and that may answer later."""


class CorruptData(ValueError):
    """Bytes that are no record batches; the message names topic, partition and offsets."""


def project_error(text: str) -> tuple[str, str]:
    """Return (class name, text) of this project's error within one of Spark's messages.

    If the message has none, the name is "" and the text is the innermost cause or the first line.
    """
    # The innermost exception of this project is the last one in the message.
    own = re.findall(r"^tidemark[\w.]*\.(\w+): (.+)$", text, re.MULTILINE)
    if own:
        name, message = own[-1]
        return str(name), str(message)
    # Only a message of py4j has a stack trace to search.
    first = text.strip().partition("\n")[0]
    if not first.startswith(_PY4J_PREFIX):
        return "", first
    causes = re.findall(_EXCEPTION_LINE, text, re.MULTILINE)
    return "", causes[-1] if causes else first
