"""``python -m tools.traceability [--check] FILE``."""

import sys

from tools.traceability import InvalidTraceability, main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except InvalidTraceability as error:
        sys.exit(f"tools/traceability: {error}")
