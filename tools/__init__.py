"""Tools of the repository: they build and release it, check it and write its generated files.

A tool is run as ``python -m tools.NAME``, mostly by the Makefile. No package of the project imports
one. Tests import a tool to test it, and to compare a generated file.
"""
