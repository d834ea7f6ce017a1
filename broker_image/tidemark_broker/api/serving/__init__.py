"""Requests of a connection: authentication, dispatch, and the table of Apis."""
