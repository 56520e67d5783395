"""Writes keras_2_2/: a checkpoint and a SavedModel of a loss-scale optimizer, by TensorFlow 2.2.

python3.8 -m pip install tensorflow==2.2.3 "protobuf<3.21"
python3.8 tests/data/write_keras_2_2.py
"""

import pathlib
import shutil

import tensorflow as tf

FOLDER = pathlib.Path(__file__).resolve().parent / "keras_2_2"


def optimizer():
    experimental = tf.mixed_precision.experimental
    return tf.keras.mixed_precision.experimental.LossScaleOptimizer(
        tf.keras.optimizers.SGD(1.0, momentum=1.0),
        experimental.DynamicLossScale(initial_loss_scale=32.0, increment_period=3),
    )


def main():
    assert tf.__version__.startswith("2.2."), tf.__version__
    shutil.rmtree(FOLDER, ignore_errors=True)
    # After four finite steps the scale is 64 and one is counted; velocity -0.5 a step.
    opt, variable = optimizer(), tf.Variable([1.0, 2.0])
    for _ in range(4):
        opt.apply_gradients([(tf.constant([0.5, 0.25]), variable)])
    tf.train.Checkpoint(opt=opt, var=variable).write(str(FOLDER / "checkpoint"))

    # Five steps, after which the velocity is not zero.
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", input_shape=(1,))]
    )
    model.compile(optimizer(), "mse")
    model.fit([[1.0]], [[0.5]], epochs=5, verbose=0)
    model.save(str(FOLDER / "saved_model"))


if __name__ == "__main__":
    main()
