"""State machines stored in partitions of internal topics (see :mod:`.coordinators`)."""
