"""That Keras' own loss-scale optimizer beside this package's, made alike."""

from tests import originals


def own(home):
    """Returns a function that wraps an optimizer of `home` in that Keras' own class.

    The scale is dynamic and starts at 8, or `initial_scale`.
    """

    def wrap(inner, initial_scale=8.0):
        if hasattr(home.keras.mixed_precision, "LossScaleOptimizer"):
            cls = home.own()
            if home.name == "current":
                cls = getattr(home.keras.mixed_precision, "LossScaleOptimizerV3", cls)
            return cls(inner, initial_scale=initial_scale)
        return home.own()(inner, originals.experimental().DynamicLossScale(initial_scale))

    return wrap
