"""Go programs that are built once on the user's machine and stored in the user's cache folder."""
