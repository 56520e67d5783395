"""The one place that holds the version; setup.py reads it without importing the package."""

__version__ = "1.0.0"
