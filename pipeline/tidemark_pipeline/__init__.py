"""The pipeline: tiered topics as Spark tables, read straight from the object store."""
