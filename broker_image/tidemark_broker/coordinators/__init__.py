"""State machines that are kept in partitions of internal topics (see :mod:`.coordinators`)."""
