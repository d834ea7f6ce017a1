"""How values are read into columns: as JSON, by a schema that was given, or by a registry's."""
