"""``python -m tidemark_operator``."""

import sys

from tidemark_operator.main import main

sys.exit(main())
