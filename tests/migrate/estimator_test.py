"""The loop on docs/estimator.md beside TensorFlow's Estimator: the same bits.

docs_test.py runs the page's own program on every TensorFlow.
"""

import json
import pathlib
import re
import tempfile

import pytest
from absl.testing import absltest

pytest.importorskip("tensorflow", reason="the loop trains, which needs TensorFlow")

from tests import forks, processes

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/estimator.md"
SECONDS = 240
BOTH = """

def input_fn():
    random = np.random.RandomState(3)
    x = random.normal(size=[32, 8]).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] > 0.0))
    return data.shuffle(32, seed=5).batch(8)


def data():
    return input_fn().repeat()


def model_fn(features, labels, mode):
    # No seed here: these draw by the number of operations before them.
    hidden = tf.matmul(features, tf.get_variable("hidden", [8, 16]))
    if mode == "train":
        hidden = tf.nn.dropout(hidden, rate=0.3)
    logits = tf.matmul(tf.nn.relu(hidden), tf.get_variable("logits", [16, 1]))
    if mode == "infer":
        return spec(mode, predictions={"logits": logits})
    labels = tf.cast(labels, tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    error = tf.metrics.mean_absolute_error(labels, tf.sigmoid(logits))
    manager = mixed_precision.ExponentialUpdateLossScaleManager(2.0**126, 3, 1, 2.0, 0.5)
    optimizer = mixed_precision.LossScaleOptimizer(tf.train.AdamOptimizer(0.01), manager)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    # As users write it for a training, where these are not needed.
    metrics = {"error": error} if mode == "eval" else {}
    return spec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def bits(folder):
    path = tf.train.latest_checkpoint(folder)
    values = {k: tf.train.load_variable(path, k) for k, _ in tf.train.list_variables(path)}
    return {name: np.asarray(value).tobytes().hex() for name, value in values.items()}


def losses(folder):
    return {
        event.step: each.simple_value
        for path in sorted(glob.glob(folder + "/events*"))
        for event in tf.train.summary_iterator(path)
        for each in event.summary.value
        if each.tag == "loss"
    }


folders = tempfile.mkdtemp(), tempfile.mkdtemp()
for max_steps in (5, 9):
    spec = EstimatorSpec
    evaluating = Evaluating(model_fn, input_fn, folders[0], seed=1)
    train(model_fn, data, folders[0], max_steps, seed=1, listeners=[evaluating])
train(model_fn, data, folders[0], 9, seed=1)
found = [bits(folders[0]), losses(folders[0]), evaluate(model_fn, input_fn, folders[0], seed=1)]
assert evaluating.found[-1] == found[2], (evaluating.found, found[2])
rows = [row["logits"].tolist() for row in predict(model_fn, input_fn, folders[0], seed=1)]
if hasattr(tf, "estimator"):
    spec = tf.estimator.EstimatorSpec
    config = tf.estimator.RunConfig(tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn, folders[1], config)
    for max_steps in (5, 9, 9):
        training = tf.estimator.TrainSpec(data, max_steps=max_steps)
        evaluation = tf.estimator.EvalSpec(input_fn, steps=None)
        tf.estimator.train_and_evaluate(estimator, training, evaluation)
    assert [row["logits"].tolist() for row in estimator.predict(input_fn)] == rows
    evaluated = {k: np.asarray(v).tolist() for k, v in estimator.evaluate(input_fn).items()}
    assert bits(folders[1]) == found[0], "variables differ"
    assert losses(folders[1]) == found[1], "summaries differ"
    assert evaluated == found[2], (evaluated, found[2])
print(json.dumps([len(found[0]), found[2]["global_step"]]))
"""
HEAD = "import glob, json, tempfile\nimport numpy as np\n"
MIXED_PRECISION = "from tf_lossscale_compat.contrib import mixed_precision\n"


class EstimatorTest(absltest.TestCase):
    def test_the_loop_is_estimator(self):
        blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
        loop = "\n".join(blocks[:2])
        with tempfile.TemporaryDirectory() as folder:
            text = HEAD + loop + MIXED_PRECISION + BOTH
            program = processes.write(folder, "program.py", text)
            status, out, err = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, err[-3000:])
        count, step = json.loads(out.splitlines()[-1])
        self.assertGreaterEqual(count, 10)
        self.assertEqual(step, 9)
