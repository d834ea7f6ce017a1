"""``python -m tests.traceability [--check] FILE``."""

import sys

from tests.traceability import InvalidTraceability, main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidTraceability as error:
        sys.exit(f"tests/traceability: {error}")
