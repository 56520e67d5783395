"""Loss scales of TensorFlow 2.0, managers of r1.15, and their update rules."""
