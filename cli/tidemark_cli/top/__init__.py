"""``tidemark top``: a cluster as it is just now, on a screen, as text or as a page of HTML."""
