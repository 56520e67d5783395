"""Steps of Keras 2 for a loss-scale optimizer, in a program that makes none.

Under a float16 policy `compile` wraps a plain optimizer in the class of its Keras. That of Keras 3
lacks these methods, and divides gradients of a loss that nothing has scaled.
"""

from tf_lossscale_compat.migrate.checks import iterations

_METHODS = ("get_scaled_loss", "get_unscaled_gradients")
_MAKERS = ("LossScaleOptimizer", "enable_mixed_precision_graph_rewrite")
_MESSAGE = (
    "LSC105 no file of this call makes the loss-scale optimizer that this step wants: on Keras 3 a"
    " plain one has no such method, and a step that asks for it by `hasattr` divides its gradients"
    " by 32768. Give `compile` `tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer(...)`"
)


def find(plan):
    """Yields the first place of a file that calls or asks for one of the methods, and no newer."""
    tree = plan.tree
    places = [tree.start(node) for name in _METHODS for node in tree.attributes.get(name, ())]
    places += [tree.start(node) for node in tree.strings if node.value[1:-1] in _METHODS]
    is_right = "scale_loss" in tree.words or iterations.KERAS_2.search(tree.source)
    if places and not (is_right or makes_one(plan)):
        yield min(places), _MESSAGE


def makes_one(plan):
    """Returns whether a file may make a loss-scale optimizer, or has a class of its own."""
    for chain in plan.tree.chains:
        names = " ".join([chain.text, *(name for _, name in chain.references)])
        if any(maker in names for maker in _MAKERS) and not plan.is_in_class_check(chain):
            return True
    return any(f"def {method}".encode() in plan.tree.source for method in _METHODS)
