"""Why a schema cannot be had as columns, or a record not by a schema."""


class SchemaRefused(ValueError):
    """It is no schema, or there are no columns for it; the message names the field and why."""
