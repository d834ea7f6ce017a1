"""Types and rules that all value formats share."""
