"""What moves where: one module for each of TensorFlow's namespaces."""

from tf_lossscale_compat.migrate.rewrites import (
    compat_v1_mixed_precision,
    contrib_mixed_precision,
    keras_experimental,
    keras_mixed_precision,
    mixed_precision_experimental,
    train_experimental,
)
from tf_lossscale_compat.migrate.rewrites._namespace import (
    ROOTS,
    Call,
    Namespace,
    Usage,
    canonical,
    family,
)

NAMESPACES = {
    namespace.old: namespace
    for module in (
        contrib_mixed_precision,
        train_experimental,
        mixed_precision_experimental,
        compat_v1_mixed_precision,
        keras_experimental,
        keras_mixed_precision,
    )
    for namespace in module.NAMESPACES
}


def find(qualified_name):
    """Finds the namespace that a name is in.

    Args:
      qualified_name: str, dotted, as resolved from the imports of a file.

    Returns:
      A `Namespace` and the list of the name's parts beyond it, empty for the namespace itself; or
      None and the whole name's parts where it is in none.
    """
    parts = canonical(qualified_name).split(".")
    for length in range(len(parts), 1, -1):
        namespace = NAMESPACES.get(".".join(parts[:length]))
        if namespace is not None:
            return namespace, parts[length:]
    return None, parts


__all__ = ["NAMESPACES", "ROOTS", "Call", "Namespace", "Usage", "canonical", "family", "find"]
