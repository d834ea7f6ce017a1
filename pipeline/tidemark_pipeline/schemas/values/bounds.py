"""What a schema may come to at most, whatever its format; and what it may say beside types."""

COLUMNS_MAX = 2_000
DEPTH_MAX = 30
#: In the metadata of a field: what it was called before.
ALIASES = "aliases"
#: Dates and times are those of the years 1 to 9999: no others are in SQL, or in Python. In seconds
#: since 1970.
FIRST_SECOND, END_SECOND = -62_135_596_800, 253_402_300_800
