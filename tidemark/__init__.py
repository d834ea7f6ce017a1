"""Library of formats and rules that broker, operator, pipeline and CLI share; no servers, no
frameworks.
"""
