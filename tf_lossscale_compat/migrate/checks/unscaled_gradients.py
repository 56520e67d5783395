"""An optimizer with a loss scale whose `apply_gradients` alone is used: no loss is ever scaled.

`compute_gradients` and `minimize` scale the loss; `tf.gradients` and a tape do not.
"""

_OPTIMIZERS = ("LossScaleOptimizer", "MixedPrecisionLossScaleOptimizer")
_GRADIENTS = {"gradient", "gradients"}
# What scales a loss, or hands the optimizer to something that does.
_SCALE = {"compute_gradients", "minimize", "get_scaled_loss", "scale_loss", "get_loss_scale"}
_SCALE |= {"compile", "fit", "loss_scale", "_loss_scale"}


def find(plan):
    """Yields the places that make such an optimizer."""
    tree = plan.tree
    if "apply_gradients" not in tree.methods or not tree.methods & _GRADIENTS:
        return
    names = {
        name.lower() for chain in tree.chains for name in chain.names[-1:] if chain.role == "call"
    }
    if tree.attributes & _SCALE or any("loss_scale" in name for name in names):
        return
    for name, chain, _ in plan.wrapper_calls():
        if name in _OPTIMIZERS:
            yield (
                tree.start(chain.nodes[0]),
                "nothing in this file scales a loss: its gradients come from `tf.gradients` or a"
                " tape, and `apply_gradients` alone does not scale. Take this optimizer's"
                " `compute_gradients` or `minimize`, with Keras `get_scaled_loss` and"
                " `get_unscaled_gradients`",
            )
