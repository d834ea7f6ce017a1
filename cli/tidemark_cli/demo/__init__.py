"""The main scenario, end to end, on real data: the program behind ``make demo``."""
