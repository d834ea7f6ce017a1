"""How a broker has topics changed: what clients ask, and what it needs itself, goes to the
operator."""
