"""`tf.estimator`, which TensorFlow 2.16 took away, in files with loss scaling.

https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1
"""

from tf_lossscale_compat.migrate import rewrites


def _is_estimator(name):
    return (rewrites.canonical(name) + ".").startswith("tensorflow.estimator.")


def find(plan):
    """Yields the first place of a file, with how many there are."""
    if not plan.is_about_loss_scaling:
        return
    tree = plan.tree
    places = [
        tree.start(chain.nodes[0])
        for chain in tree.chains
        if any(binding is not None and _is_estimator(name) for binding, name in chain.references)
    ]
    places += [
        tree.start(binding.alias) for binding in tree.bindings if _is_estimator(binding.path)
    ]
    if places:
        yield (
            min(places),
            f"`tf.estimator` ({len(places)} in this file) is gone since TensorFlow 2.16: stay on"
            " 2.15 with it, or write the training loop out",
        )
