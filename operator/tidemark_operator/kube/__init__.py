"""The Kubernetes API as the operator uses it: few verbs, short timeouts, few error types."""
