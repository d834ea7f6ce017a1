"""JSON: which records can be rows, and the columns that records have."""
