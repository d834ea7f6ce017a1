"""Topic changes of a broker, requested by clients or by itself, on their way to the operator."""
