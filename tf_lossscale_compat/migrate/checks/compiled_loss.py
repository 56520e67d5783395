"""`compiled_loss` and `compiled_metrics` in a step of a Keras model, in files with loss scaling.

Keras 3 has them for a while yet, but its `compiled_loss` leaves the metric "loss" as it was, so
that every epoch shows the same: https://keras.io/guides/migrating_to_keras_3/
"""

_ADVICE = {
    "compiled_loss": (
        "on Keras 3 write `loss = self.compute_loss(x, y, y_pred)`, and update the metric"
        ' "loss" with it, else every epoch shows the same loss'
    ),
    "compiled_metrics": (
        "on Keras 3 write `for metric in self.metrics: metric.update_state(loss) if metric.name =="
        ' "loss" else metric.update_state(y, y_pred)`'
    ),
}


def find(plan):
    """Yields the attributes of that name."""
    if not plan.is_about_loss_scaling:
        return
    for chain in plan.tree.chains:
        for name in chain.names[1:]:
            if name in _ADVICE:
                yield plan.tree.start(chain.nodes[0]), f"`{chain.text}`: {_ADVICE[name]}"
