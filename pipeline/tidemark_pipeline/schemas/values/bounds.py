"""What a schema may come to at most, whatever its format; and what it may say beside types."""

COLUMNS_MAX = 2_000
DEPTH_MAX = 30
#: In the metadata of a field: what it was called before.
ALIASES = "aliases"
