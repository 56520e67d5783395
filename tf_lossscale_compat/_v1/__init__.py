"""Loss-scale optimizers around `tf.compat.v1.train.Optimizer`s."""
