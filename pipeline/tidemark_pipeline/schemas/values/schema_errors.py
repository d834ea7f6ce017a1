"""Errors of schemas that have no columns."""


class SchemaRefused(ValueError):
    """The text is no schema, or has no columns. The message names the field and the reason."""
