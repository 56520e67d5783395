"""Measurements of this package beside its peers; `python -m benchmarks --help`."""
