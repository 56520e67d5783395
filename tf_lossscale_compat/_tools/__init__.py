"""The command `tf-lossscale`; of the package, `__main__` alone imports it."""
