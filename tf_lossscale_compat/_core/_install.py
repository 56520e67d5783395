"""The words with which errors say what to install; needs no TensorFlow."""


def command(*extras: str) -> str:
    """Returns the words with which an error says how to install one of these extras."""
    quoted = " or ".join(f"'tf_lossscale_compat[{extra}]'" for extra in extras)
    # That name alone would lead to no package, or to one of a stranger.
    return (
        f"pip install {quoted}, with the path of a checkout or wheel in place of the name, as the "
        "package is on no index yet"
    )
