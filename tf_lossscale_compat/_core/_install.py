"""The pip commands of error messages; needs no TensorFlow."""


def command(*extras: str) -> str:
    """Returns the pip command for one of these extras, for error messages."""
    quoted = " or ".join(f"'tf_lossscale_compat[{extra}]'" for extra in extras)
    # On an index the bare name would find no package, or a stranger's.
    return (
        f"pip install {quoted}, with the path of a checkout or wheel in place of the name, as the "
        "package is on no index yet"
    )
