"""The cluster's own certificate authorities, which the operator creates, stores and renews."""
