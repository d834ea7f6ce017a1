"""The Kubernetes API as the operator uses it: few verbs, short time-outs, small errors."""
