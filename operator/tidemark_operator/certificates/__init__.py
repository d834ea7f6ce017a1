"""The cluster's own certificate authority: made, kept and renewed by the operator."""
