"""Entry point of ``python -m tidemark_broker``."""

import sys

from tidemark_broker.main import main

sys.exit(main())
