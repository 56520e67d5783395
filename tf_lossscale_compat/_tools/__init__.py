"""The commands of `tf-lossscale`; nothing else of the package imports them."""
