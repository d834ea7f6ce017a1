"""The library: formats and rules that broker, operator, pipeline and cli share; no servers, no
frameworks."""
