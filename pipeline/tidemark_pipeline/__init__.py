"""Pipeline: tiered topics as Spark tables, read directly from the object store."""
