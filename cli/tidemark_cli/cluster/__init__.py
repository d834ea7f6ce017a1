"""Commands of the local cluster: up, down, env, broker, cache and kubectl."""
