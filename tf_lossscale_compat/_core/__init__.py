"""One training step and its parts, also the public `StepRecord`; without optimizers' classes."""
