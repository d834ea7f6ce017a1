"""Limits of a schema's columns in every format, and metadata of its fields."""

COLUMNS_MAX = 2_000
DEPTH_MAX = 30
#: Metadata of a field: its former names.
ALIASES = "aliases"
#: First second and end of the years 1 to 9999, in seconds since 1970. SQL and Python have no other
#: dates and times.
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
