"""Commands over a tier: sweep, restore, and the Spark jobs."""
