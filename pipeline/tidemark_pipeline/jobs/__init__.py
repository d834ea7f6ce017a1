"""Jobs built on the ``tidemark`` source; each is a function of a session and its arguments."""
