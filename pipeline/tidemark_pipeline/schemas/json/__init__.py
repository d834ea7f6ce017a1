"""JSON: check of records against columns, and inference of columns from records."""
