"""The main job, end to end, on real input: what ``make demo`` runs."""
