"""One training step and its parts; independent of the public classes."""
