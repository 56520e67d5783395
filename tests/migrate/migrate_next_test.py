"""Names that newer TensorFlows dropped, and the steps that `migrate` ends with: for `--to`."""

import os
import re
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tests.migrate.migrate_command_test import FolderTestCase, call
from tf_lossscale_compat.migrate import _next, _source

HEAD = "import tensorflow as tf\nimport tf_lossscale_compat\n"
LINE = HEAD.count("\n") + 1
UPGRADE = "tf_upgrade_v2 --mode SAFETY --reportfile tf_upgrade_v2.log"
SWITCH = "TF_USE_LEGACY_KERAS"
STEPS = {
    "upgrade": f"\n    {UPGRADE} --infile a.py --outfile a.py\n",
    "by hand": "\n    import tensorflow.compat.v1 as tf\n",
    "behavior": "\n    tf.compat.v1.disable_v2_behavior()\n",
    "behavior of compat.v1": "\n    tf.disable_v2_behavior()\n",
    "slim": "\n    pip install tf-slim\n",
    "batch_norm": '\n    sys.modules["tf_keras.legacy_tf_layers.normalization"] = normalization\n',
    "keras": "Keras 3 lacks this in graphs. Stay with Keras 2:\n\n"
    f"    pip install --no-deps 'tf_keras==2.21.*'\n    export {SWITCH}=1\n",
    "choice": "change the places that say `on Keras 3`, or leave them and stay with Keras 2",
}


def findings(text, to=(2, 21)):
    return _source.migrate(text, _source.Options(to)).findings


class NewerVersionsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))
        os.environ.pop(SWITCH, None)

    @parameterized.parameters(
        (
            "self.compiled_loss(y, y_pred)",
            "write `loss = self.compute_loss(x, y, y_pred) / share - sum(self.losses)`, and",
        ),
        ("self.compiled_metrics.update_state(y, y_pred)", "end the step with `return self."),
        ("model.fit_generator(g)", "write `fit`"),
        ("model.evaluate_generator(g)", "write `evaluate`"),
        ("model.predict_generator(g)", "write `predict`"),
        ("metric.reset_states()", "write `reset_state`"),
        ("self.add_update(u)", "remove the call"),
        ("opt.get_updates(l, p)", "write `optimizer.apply_gradients(zip(gradients, variables))`"),
        ("opt.get_weights()", "write `[each.numpy() for each in optimizer.variables]`"),
        ("opt.aggregate_gradients(g)", "remove it, as Keras sums gradients"),
        ("opt.gradient_aggregator(g)", "remove it, as Keras sums gradients"),
        ("opt.get_gradients(l, p)", "compute the gradients with `tf.GradientTape`"),
        ("opt._decayed_lr(tf.float32)", "write `optimizer.learning_rate`"),
        ("opt._get_hyper('momentum')", "write the attribute of that name"),
        ("opt._set_hyper('momentum', 1)", "assign to the attribute of that name"),
        ("self.model.optimizer.lr", "write `learning_rate`"),
        ("opt.lr.numpy()", "write `learning_rate`"),
        ("model.optimizer.lr.assign(0.1)", "write `learning_rate`"),
        ("opts[0].lr", "write `learning_rate`"),
        ("get_optimizer(1).lr.numpy()", "write `learning_rate`"),
        ("opt = make()\nopt.lr.numpy()", "write `learning_rate`"),
        ("model.metrics_names", "the metrics of `compile` are one, `compile_metrics`: use"),
        ("self.add_metric(x, name='x')", "make a `keras.metrics.Mean(name=…)` in `__init__` and"),
        ("model.load_weights(path).expect_partial()", "remove it, as `load_weights` returns"),
        ("s = model.load_weights(path)\ns.assert_consumed()", "remove it, as `load_weights`"),
        ("history.history['lr']", "write `learning_rate`"),
        ("model.fit(x).history['lr']", "write `learning_rate`"),
        ("logs.get('lr')", "write `learning_rate`"),
        ("self.compiled_loss.metrics", "write `super().metrics`, which has all metrics"),
        ("self.compiled_metrics.metrics", "write `super().metrics`, which has all metrics"),
        ("self.compiled_loss.reset_state()", "write `self.reset_metrics()`"),
        (
            "{m.name: m for m in self.metrics if m.name in own}",
            "the metrics of `compile` are one: f",
        ),
        (
            "tf.train.latest_checkpoint(d), m.save_weights(p)",
            "it ignores `.weights.h5`: write `max(glob.glob(…), key=getmtime, default=None)`",
        ),
        *[
            (f"{number}, m.save_weights(p)", "take `.weights.h5` off the path before a number")
            for number in (
                "int(latest.split('-')[-1])",
                "int(os.path.basename(ckpt_path).rsplit('_', 1)[1])",
                r"int(re.findall(r'\d+', last_file)[-1])",
            )
        ],
        ("tf.keras.losses.Reduction.AUTO", 'write "sum_over_batch_size"'),
        ("tf.keras.optimizers.legacy.SGD(1)", "use the class of `tf.keras.optimizers`"),
        ("tf.keras.layers.experimental.preprocessing.Rescaling(1)", "`tf.keras.layers`"),
        ("tf.keras.experimental.SequenceFeatures()", "stay with Keras 2"),
        ("tf.keras.backend.set_learning_phase(1)", "call the model with `training=True`"),
        ("tf.keras.backend.in_train_phase(a, b)", "write an `if` on the argument `training`"),
    )
    def test_names(self, code, advice):
        (finding,) = findings(HEAD + code)
        where = re.search(r"^s\.|^opt\.lr|['\"]lr|(?<=^int\().|(?<=in )self", code, re.MULTILINE)
        start = where.start() - code.rfind("\n", 0, where.start()) if where else 1
        self.assertEqual((finding.line, finding.column), (LINE + code.count("\n"), start))
        self.assertIn(f"`: on Keras 3 {advice}" if " " in advice else advice, finding.message)
        for text in (code, f"import os\nos.environ['{SWITCH}'] = '1'\n" + HEAD + code):
            self.assertEmpty(findings(text), "without loss scaling, or on Keras 2")
        self.assertEmpty(findings(HEAD + code, (2, 15)))
        with mock.patch.dict(os.environ, {SWITCH: "1"}):
            self.assertEmpty(findings(HEAD + code))

    @parameterized.parameters(
        ("model.fit(x, ", "workers=2", "leave it out, or pass it to a `keras.utils.PyDataset`"),
        ("model.predict(x, ", "use_multiprocessing=True", "leave it out, or pass it to"),
        ("model.evaluate(x, ", "max_queue_size=2", "leave it out, or pass it to"),
        ("model.save('x', ", "save_format='h5'", "leave it out; the path must end in"),
        ("opt.apply_gradients(g, ", "experimental_aggregate_gradients=False", "leave it out, and"),
        ("opt.apply_gradients(g, ", "skip_gradients_aggregation=True", "leave it out, and apply"),
        ("tf.keras.optimizers.Adam(", "lr=1", "write `learning_rate`"),
    )
    def test_arguments(self, start, argument, advice):
        (finding,) = findings(f"{HEAD}{start}{argument})")
        self.assertEqual((finding.line, finding.column), (LINE, len(start) + 1))
        self.assertIn(f"`{argument.split('=')[0]}`: on Keras 3 {advice}", finding.message)
        self.assertEmpty(findings(f"{HEAD}other({argument})"))
        self.assertEmpty(findings(f"{HEAD}{start}{argument})", (2, 15)))

    def test_a_model_in_a_file_that_names_no_class(self):
        # As where another file makes the optimizer: only the methods tell.
        code = "import tensorflow as tf\n\n\nclass Net(tf.keras.Model):\n"
        code += "    def train_step(self, data):\n        loss = self.compiled_loss(*data)\n"
        self.assertEmpty(findings(code))
        for method in ("get_scaled_loss(loss)", "get_unscaled_gradients(loss)"):
            (finding,) = findings(f"{code}        self.optimizer.{method}\n")
            self.assertEqual((finding.code, finding.line), ("LSC401", 6))

    def test_paths_of_weights(self):
        for path in ("'x.h5'", '"x"', "f'{x}.h5'", "filepath='x.h5'"):
            (finding,) = findings(f"{HEAD}model.save_weights({path})")
            self.assertEqual((finding.line, finding.column), (LINE, 20 + 9 * (path[:2] == "fi")))
            self.assertStartsWith(finding.message, "`save_weights`: on Keras 3 let the path end in")
            self.assertEmpty(findings(f"{HEAD}model.save_weights({path})", (2, 15)))
        for path in ("'x.weights.h5'", '"x.weights.h5"', "path", ""):
            self.assertEmpty(findings(f"{HEAD}model.save_weights({path})"))
        self.assertEmpty(findings(f"{HEAD}model.save('x.h5')"))

    def test_methods_that_others_have(self):
        for code in (
            "model.get_weights()",
            "flags.learning_rate()",
            "opt.learning_rate",
            "tf.train.Checkpoint(m=m).restore(p).expect_partial()",
            "{m.name: m for m in self.metrics if m.name != 'loss'}",
            "own['lr'], {'lr': 1}",
            "tf.train.latest_checkpoint(d)",
            "int(latest.split('-')[-1])",
            "int(latest.replace('.weights.h5', '').split('-')[-1]), m.save_weights(p)",
            "int(line.split('-')[-1]), m.save_weights(p)",
            "tf.train.latest_checkpoint(d), m.save_weights(p), tf.train.Checkpoint(m=m)",
        ):
            self.assertEmpty(findings(HEAD + code), code)

    @parameterized.parameters(
        ("opt.get_slot(v, 'm')", True),
        ("self.optimizer.inner_optimizer.get_slot(v, 'm')", True),
        ("opt.get_slot_names()", True),
        ("model.optimizer.weights", True),
        ("model.weights", False),
        ("tf.keras.optimizers.legacy.SGD(1), opt.weights", False),
    )
    def test_slots_of_optimizers(self, code, is_reported):
        code = f"{HEAD}tf.keras\n{code}"
        found = [finding.code for finding in findings(code, (2, 11))]
        self.assertEqual(found, ["LSC307"] * is_reported)
        self.assertEmpty(findings(code, (2, 10)))
        self.assertEmpty(findings(code.replace("keras", "train"), (2, 11)))

    def test_rates_that_are_called(self):
        for code in (
            "self.optimizer.learning_rate(step)",
            "opt._optimizer.learning_rate(1)",
            "opt.lr(opt.iterations)",
        ):
            code = f"{HEAD}tf.keras\n{code}"
            for to in ((2, 11), (2, 15), (2, 21)):
                (finding,) = findings(code, to)
                self.assertEqual((finding.line, finding.code), (LINE + 1, "LSC308"))
                self.assertIn("write `optimizer.learning_rate` without the call", finding.message)
            self.assertEmpty(findings(code, (2, 10)))
            self.assertEmpty(findings(f"{code}\ntf.keras.optimizers.legacy.SGD(1)", (2, 15)))

    def test_paths_that_are_loaded(self):
        for path in ("'x'", "os.path.join(folder, 'x')"):
            for call_ in ("model.load_weights", "tf.keras.models.load_model"):
                (finding,) = findings(f"{HEAD}{call_}({path})")
                self.assertEqual((finding.line, finding.column), (LINE, len(call_) + 2))
                self.assertEqual(finding.code, "LSC414")
                self.assertEmpty(findings(f"{HEAD}{call_}({path})", (2, 15)))
        for path in ("'x.h5'", "'x.keras'", "path"):
            self.assertEmpty(findings(f"{HEAD}model.load_weights({path})"))
        self.assertEmpty(findings(f"{HEAD}from own import load_model\nload_model('x')"))

    def test_a_model_of_any_name_is_saved(self):
        for line, number in (("second.fit(x)", 1), ("second.compile('sgd')", 1), ("f(x)", 0)):
            self.assertLen(findings(f"{HEAD}{line}\nsecond.save('x')"), number)

    @parameterized.parameters(
        ("'w.h5'", "'w.h5'", 2),
        ("'w.weights.h5'", "'w.h5'", 1),
        ("'w.weights.h5'", "'w.weights.h5'", 0),
        ("os.path.join(d, 'w-{epoch:02d}.weights.h5')", "d + '/w-05.h5'", 1),
        ("'w.weights.h5'", "'imagenet.h5'", 0),
        ("path", "'w.h5'", 0),
    )
    def test_paths_that_are_loaded_as_they_are_saved(self, saved, loaded, number):
        code = f"{HEAD}model.load_weights({loaded})\n"
        for call_ in ("model.save_weights({})", "tf.keras.callbacks.ModelCheckpoint({}, {}=True)"):
            found = findings(code + call_.format(saved, "save_weights_only"))
            self.assertEqual([finding.code for finding in found], ["LSC414"] * number)

    def test_weights_that_are_loaded_to_train_on(self):
        made = "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1))"
        load, fit = "model.load_weights(path)", "model.fit(x, y)"
        (finding,) = findings(f"{HEAD}{made}\n{load}\n{fit}")
        self.assertEqual((finding.line, finding.code), (LINE + 1, "LSC107"))
        self.assertIn("`model.optimizer.build(model.trainable_variables)`", finding.message)
        self.assertEmpty(findings(f"{HEAD}{made}\n{load}\n{fit}", (2, 15)))
        built = "model.optimizer.build(model.trainable_variables)"
        for lines in ([built, load, fit], [fit, load], [load]):
            self.assertEmpty(findings("\n".join([HEAD + made, *lines])))
        self.assertEmpty(findings(f"{HEAD}{load}\n{fit}"))

    def test_variables_that_no_file_of_weights_holds(self):
        text = HEAD + "class Net(tf.keras.{}):\n  def f(self):\n    self.x = {}\nnet.{}(path)\n"
        for base in ("Model", "layers.Layer"):
            for value in ("tf.Variable(0)", "[tf.Variable(v) for v in self.variables]"):
                for method in ("save_weights", "load_weights", "save"):
                    (finding,) = findings(text.format(base, value, method))
                    self.assertEqual((finding.line, finding.column), (LINE + 2, 14))
                    self.assertStartsWith(finding.message, "`self.x`: on Keras 3 files of a model")
        self.assertEmpty(findings(text.format("Model", "tf.Variable(0)", "fit")))
        for callback in ("ModelCheckpoint(p, save_weights_only=True)", "E(restore_best_weights=1)"):
            self.assertLen(findings(text.format("Model", "tf.Variable(0)", "f") + callback), 1)
        self.assertEmpty(findings(text.format("Model", "self.add_weight()", "save")))
        self.assertEmpty(findings(text.format("Model", "tf.Variable(0)", "save"), (2, 15)))

    def test_reductions_that_keras_3_has(self):
        for name in ("NONE", "SUM", "SUM_OVER_BATCH_SIZE"):
            self.assertEmpty(findings(f"{HEAD}tf.keras.losses.Reduction.{name}"))
        self.assertEmpty(findings(f"{HEAD}from tensorflow.keras.losses import Reduction"))

    def test_names_of_weights(self):
        (finding,) = findings(f"{HEAD}self.add_weight('total', initializer='zeros')")
        self.assertEqual(finding.message, "`add_weight`: on Keras 3 write `name='total'`")
        for arguments in ("name='total'", "(), 'zeros'", "shape"):
            self.assertEmpty(findings(f"{HEAD}self.add_weight({arguments})"))

    def test_models_that_leave_build_to_keras(self):
        text = HEAD + "class Net(tf.keras{}Model):\n    {}\nmodel = Net()\nmodel.build({})\n"
        for base in (".", ".models."):
            for shape in ("(None, 8)", "[None, 8]", "input_shape=(None, 8)"):
                (finding,) = findings(text.format(base, "pass", shape))
                self.assertEqual((finding.line, finding.column), (LINE + 3, 1))
                self.assertStartsWith(finding.message, "`model.build`: on Keras 3 it makes no")
        self.assertEmpty(findings(text.format(".", "pass", "(None, 8)"), (2, 15)))
        self.assertEmpty(findings(text.format(".", "pass", "")))
        self.assertEmpty(findings(text.format(".", "pass", "model.trainable_variables")))
        self.assertEmpty(findings(text.format(".", "def build(self, _): pass", "(None, 8)")))
        self.assertEmpty(findings(f"{HEAD}model = tf.keras.Sequential()\nmodel.build((None, 8))"))

    def test_restored_models(self):
        for made in ("tf.train.Checkpoint(model=m, optimizer=o)", "tf.train.Checkpoint(gen=gen)"):
            text = f"{HEAD}gen.trainable_variables\nckpt = {made}\n"
            for line in ("ckpt.restore(p)", "ckpt.restore(f(p)).expect_partial()", "ckpt.read(p)"):
                (finding,) = findings(text + line)
                self.assertEqual((finding.line, finding.code), (LINE + 2, "LSC426"))
                self.assertEndsWith(
                    finding.message, "below an `if` where there may be no checkpoint yet"
                )
                self.assertEmpty(findings(text + line, (2, 15)))
            (finding,) = findings(text.replace("ckpt", "self.ckpt") + "self.ckpt.restore(p)")
            (finding,) = findings(f"{HEAD}gen.trainable_variables\n{made}.restore(p)")
            for line in (
                "ckpt.restore(f(p)).assert_existing_objects_matched()",
                "status = ckpt.restore(p)\nstatus.assert_consumed()",
                "other.restore(p)",
                "ckpt.save(p)",
            ):
                self.assertEmpty(findings(text + line), line)
        self.assertEmpty(findings(f"{HEAD}ckpt = tf.train.Checkpoint(o=o)\nckpt.restore(p)"))

    def test_schedules(self):
        made = "tf.keras.mixed_precision.LossScaleOptimizer(o{})\n"
        for rate in (
            "tf.keras.optimizers.schedules.ExponentialDecay(1, 2, 3)",
            "o.iterations",
            "tf.keras.optimizers.Adam()",
            "tf.keras.optimizers.get('nadam')",
        ):
            for there in ("", "_lossscale_compat"):  # Before and after the names are replaced.
                text = HEAD + made.format("").replace("tf.", f"tf{there}.") + rate
                (finding,) = findings(text)
                self.assertEqual((finding.line, finding.column), (LINE, 1))
                self.assertIn("on Keras 3 `iterations`, which schedules and", finding.message)
                self.assertIn("`count_skipped=True`", finding.message)
                self.assertEmpty(findings(text, (2, 15)))
            self.assertEmpty(findings(HEAD + made.format(", count_skipped=False") + rate))
            self.assertEmpty(findings(HEAD + made.format(", dynamic=False") + rate))
            contrib = "tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer(o, m)\n"
            self.assertEmpty(findings(HEAD + contrib + rate))
        self.assertEmpty(findings(HEAD + made.format("")))

    @parameterized.parameters(
        ("tf.keras.optimizers.SGD(learning_rate_schedules.Own())", "", ["LSC104"]),
        ("tf.keras.optimizers.Adam(1)", ", 'dynamic'", ["LSC104"]),
        ("tensorflow_addons.optimizers.LAMB(o.iterations)", ", loss_scale='dynamic'", ["LSC104"]),
        ("tf.keras.optimizers.Adam(1)", ", loss_scale=128.", []),
        ("tf.keras.optimizers.SGD(1)", "", []),
        ("tf.compat.v1.train.AdamOptimizer(1)", "", []),
    )
    def test_the_graph_rewrite_counts_like_keras_optimizer(self, opt, scale, codes):
        text = f"{HEAD}import tensorflow_addons\nopt = {opt}\n"
        text += f"tf.train.experimental.enable_mixed_precision_graph_rewrite(opt{scale})\n"
        found = findings(text)
        self.assertEqual([finding.code for finding in found], codes)
        for finding in found:
            self.assertIn(
                'experimental.LossScaleOptimizer(opt, "dynamic", count_skipped=True)`,'
                " with `tf.config.optimizer.set_experimental",
                finding.message,
            )

    @parameterized.parameters(
        ("'dynamic'", True),
        ("tf_lossscale_compat.FixedLossScale(8, skip_nonfinite=True)", True),
        ("tf_lossscale_compat.FixedLossScale(8)", False),
        ("loss_scale=scale", False),
        ("2.0**10", False),
    )
    def test_fixed_scales_skip_nothing(self, scale, is_reported):
        made = "tf.keras.mixed_precision.experimental.LossScaleOptimizer(o, {})\no.iterations\n"
        text = f"{HEAD}scale = tf_lossscale_compat.FixedLossScale(8)\n{made.format(scale)}"
        codes = [finding.code for finding in findings(text)]
        self.assertEqual(codes, ["LSC104"] * is_reported)

    @parameterized.parameters(
        ("SGD(0.1)", 0),
        ("SGD(learning_rate=0.1, momentum=0.9)", 0),
        ("SGD()", 0),
        ("SGD(rate)", 1),
        ("Adam(0.1)", 1),
    )
    def test_a_schedule_for_a_callback(self, inner, number):
        text = f"{HEAD}opt = tf.keras.optimizers.{inner}\n"
        text += "opt = tf.keras.mixed_precision.LossScaleOptimizer(opt)\n"
        rate = "rate = tf.keras.optimizers.schedules.ExponentialDecay(1, 2, 3)\n"
        rate += "tf.keras.callbacks.LearningRateScheduler(rate)\n"
        self.assertLen(findings(text + rate), number)
        self.assertLen(findings(text + rate + "opt.iterations"), 1)

    def test_optimizers_that_do_not_correct_a_bias(self):
        text = HEAD + "inner = tf.keras.optimizers.{}()\nother = tf.keras.optimizers.Adam()\n"
        text += "tf.keras.mixed_precision.LossScaleOptimizer(inner)\n"
        for name, number in (("SGD", 0), ("RMSprop", 0), ("AdamW", 1)):
            self.assertLen(findings(text.format(name)), number)

    @parameterized.parameters(
        # Each optimizer by itself.
        ("a, b = {0}, {0}\na.build(v)", "strategy.run(s)", 1),
        ("a_opt = {0}\nb_opt = {0}\na_opt.build(v)", "strategy.run(s)", 1),
        ("a_opt = {0}\nb_opt = {0}\n# a_opt.build(v)", "strategy.run(s)", 2),
        ("a, b = {0}, {0}\nfor o in (a, b):\n  o.build(m.variables)", "strategy.run(s)", 0),
        ("opts = [{0}, {0}]\nopts[0].build(v)", "strategy.run(s)", 0),
        ("self.opt = {0}\nopt = self.opt\nopt.build(v)", "strategy.run(s)", 0),
        (
            "def f():\n  opt = {0}\n  return opt\no = f()\no.build(m.variables)",
            "strategy.run(s)",
            0,
        ),
        ("a_opt = {0}\nm = f()\nm.build((None, 8))", "strategy.run(s)", 1),
        # `fit` builds those that are `compile`d, and takes their steps.
        ("opt = {0}\nm.compile(opt)", "strategy.run(s)", 0),
        ("m.compile('mse', optimizer={0})", "strategy.run(s)", 0),
        ("opt = {0}\nm.compile(opt)\nself.optimizer.apply_gradients(g)", "strategy.scope()", 0),
        ("opt = {0}\nm.compile(opt)\nopt.apply_gradients(g)", "strategy.run(s)", 1),
        ("opt = {0}\nm.compile(opt)\nm.optimizer.apply_gradients(g)", "strategy.run(s)", 1),
        # But not those of a model with a `compile` of its own.
        (
            "def compile(self, a, b): pass\nm.compile({0}, {0})\na.minimize(l)",
            "strategy.scope()",
            2,
        ),
        ("opt = {0}\nopt.apply_gradients(g)", "f()", 0),
        # A name that is bound again.
        ("opt = {0}\nopt.build(v)\nopt.apply_gradients(g)\nopt = {0}", "strategy.run(s)", 1),
        ("opt = {0}\nopt.build(v)\nopt = {0}\nopt.build(v)", "strategy.run(s)", 0),
        (
            "def make():\n  return {0}\nopt = make()\nopt.build(v)\nopt = make()",
            "strategy.run(s)",
            1,
        ),
        ("if a:\n  opt = {0}\nelse:\n  opt = {0}\nopt.build(v)", "strategy.run(s)", 0),
        ("opt = {0}\nopt.build(v)\nopt = {0}\nm.compile(opt)", "strategy.run(s)", 0),
        (
            "opt = {0}\nopt.build(v)\nopt = {0}\nfor o in [opt]:\n  o.build(m.variables)",
            "strategy.run(s)",
            0,
        ),
    )
    def test_optimizers_that_nothing_builds(self, code, steps, number):
        made = "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1))"
        for text in (
            code.format(made),
            code.format(made).replace("tf.", "tf_lossscale_compat.", 1),
        ):
            found = [finding.code for finding in findings(f"{HEAD}{text}\n{steps}")]
            self.assertEqual(found, ["LSC105"] * number)

    @parameterized.parameters(
        ("Adam(decay=1e-4)", "0.001, 1, 1e-4"),
        ("SGD(momentum=1, decay=d)", "0.01, 1, d"),
        ("SGD(0.5, decay=d)", "0.5, 1, d"),
        ("SGD(learning_rate=r, decay=d)", "r, 1, d"),
    )
    def test_decay(self, call_, arguments):
        text = f"{HEAD}tf.keras.optimizers.{call_}"
        (finding,) = findings(text, (2, 11))
        self.assertIn(
            f"since TensorFlow 2.11 write `learning_rate=tf.keras.optimizers.schedules."
            f"InverseTimeDecay({arguments})`",
            finding.message,
        )
        self.assertEmpty(findings(text, (2, 10)))
        self.assertEmpty(findings(text.replace(".SGD", ".legacy.SGD"), (2, 11))[1:])

    def test_an_optimizer_of_ones_own(self):
        text = HEAD + "class Own(tf.keras.optimizers.Optimizer):\n    def {}(self): pass\n"
        for method in ("_resource_apply_dense", "_create_slots", "get_updates"):
            (finding,) = findings(text.format(method))
            self.assertIn("on Keras 3 write the methods `build` and `update_step`", finding.message)
        self.assertEmpty(findings(text.format("update_step")))

    def test_an_optimizer_of_addons(self):
        text = HEAD + "from tensorflow_addons.optimizers import MovingAverage\n"
        text += "class Own(MovingAverage):\n    def {}(self): pass\n"
        for method, code in (("_create_slots", "LSC416"), ("apply_gradients", "LSC106")):
            (finding,) = findings(text.format(method))
            self.assertEqual(finding.code, code)

    def test_estimator(self):
        text = HEAD + "tf.estimator.Estimator(f)\ntf.compat.v1.estimator.TrainSpec\n"
        (finding,) = findings(text)
        self.assertEqual(finding.line, LINE)
        self.assertIn("`tf.estimator` (2 in this file) was removed in TensorFlow 2", str(finding))
        self.assertEmpty(findings(text, (2, 15)))

    @parameterized.parameters(
        ("loss_scale=None", False),
        ("None", False),
        ("loss_scale=8", True),
        ("scale", True),
    )
    def test_policies_without_a_loss_scale(self, argument, is_wrapped):
        (finding,) = findings(f"{HEAD}tf.keras.mixed_precision.Policy('x', {argument})")
        self.assertEqual(finding.code, "LSC301")
        self.assertIn("leave the argument out", finding.message)
        self.assertEqual("wrap the optimizer" in finding.message, is_wrapped)
        self.assertNotIn("fails at once", finding.message)

    def test_a_policy_with_a_loss_scale_that_is_rewritten(self):
        for made in ("tf.mixed_precision.experimental", "tf_lossscale_compat"):
            text = f"{HEAD}scale = {made}.DynamicLossScale()\n"
            (finding,) = findings(text + "tf.keras.mixed_precision.Policy('x', loss_scale=scale)")
            self.assertIn("`Could not interpret loss scale identifier`", finding.message)

    @parameterized.parameters(
        ("layers.experimental.SyncBatchNormalization()", "LSC410", "(synchronized=True)"),
        ("backend.set_value(rate, 0.1)", "LSC407", "variable.assign(value)"),
    )
    def test_names_of_keras_that_have_another(self, name, code, advice):
        (finding,) = findings(f"{HEAD}tf.keras.{name}")
        self.assertEqual(finding.code, code)
        self.assertIn(advice, finding.message)

    def test_checks_make_a_file_one_about_loss_scaling(self):
        check = "isinstance(o, tf.keras.mixed_precision.LossScaleOptimizer)\n"
        code = "import tensorflow as tf\ntf.keras.backend.set_learning_phase(1)\n" + check
        found = [finding.code for finding in findings(code)]
        self.assertEqual(found, ["LSC412", "LSC203"])
        # Keras 3's own class, and code for it.
        made = "tf.keras.mixed_precision.LossScaleOptimizer(o, name='x')\n"
        self.assertEmpty(findings(code + made))

    @parameterized.parameters(
        ("tf.contrib.slim", (2, 0), (1, 15)),
        ("tf.keras.mixed_precision.experimental.set_policy('x')", (2, 4), (2, 3)),
        ("tf.keras.mixed_precision.Policy('x', loss_scale=8)", (2, 4), (2, 3)),
    )
    def test_from_which_version_on(self, code, reported, not_yet):
        self.assertLen(findings(HEAD + code, reported), 1)
        self.assertEmpty(findings(HEAD + code, not_yet))


class StepsTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))
        os.environ.pop(SWITCH, None)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def check_steps(self, text, *steps, to="2.21"):
        self.write("a.py", text)
        _, out, err = call("a.py", "--to", to)
        self.assertNotIn(b"next, on", out)
        self.assertEqual([name for name, step in STEPS.items() if step in err], list(steps), err)
        self.assertEqual(f"\nnext, on TensorFlow {to}:\n\n1. " in err, bool(steps))
        self.assertEqual(f"\n{len(steps)}. " in err, bool(steps))

    @parameterized.parameters(
        ("tf.placeholder(x)", "upgrade", "behavior"),
        ("tf.train.AdamOptimizer(x)", "upgrade", "behavior"),
        ("from tensorflow.python.ops import math_ops\ntf.log(x)", "by hand", "behavior"),
        ("tf.log(x)\ntf.disable_v2_behavior()", "upgrade"),
        ("tf.compat.v1.placeholder(x)", "behavior"),
        ("tf.compat.v1.disable_eager_execution()\ntf.compat.v1.log(x)",),
        ("tf.layers.dense(x)", "upgrade", "behavior", "keras"),
        ("tf.compat.v1.nn.rnn_cell.LSTMCell(x)", "behavior", "keras"),
        ("tf.Session()\ntf.keras.layers.Dense(1)", "upgrade", "behavior"),
        ("tf.Session()\ntf.keras.layers.Dense(1)\nm.fit(x)", "upgrade", "behavior", "keras"),
        ("tf.Session()\ntf.keras.regularizers.l1(1)", "upgrade", "behavior", "keras"),
        ("tf.Session()\ntf.keras.backend.set_session(s)", "upgrade", "behavior", "keras"),
        ("tf.compat.v1.Session()\ntf.compat.v1.keras.losses.MeanSquaredError()", "behavior"),
        ("tf.layers.dense(x)\ntf.disable_v2_behavior()\nself.compiled_loss",)
        + ("upgrade", "keras", "choice"),
        ("self.compiled_loss  # tf-lossscale: checked",),
        ("self.compiled_loss", "choice"),
        ("tf.contrib.layers.fully_connected(x)", "slim"),
        ("import tf_slim\ntf_slim.batch_norm(x)", "slim", "batch_norm"),
        ("import tf_slim\ntf_slim.batch_norm(x)\nimport tf_keras.legacy_tf_layers as n", "slim"),
        ("from tensorflow.core.framework import graph_pb2\ntf.log(x)", "by hand", "behavior"),
        ("tf.keras.layers.Dense(1), tf.function, tf.math.log(x)",),
    )
    def test_steps(self, code, *steps):
        self.check_steps(f"{HEAD}{code}\n", *steps)

    def test_the_import_of_compat_v1(self):
        text = "import tensorflow.compat.v1 as tf\nimport tf_lossscale_compat\ntf.placeholder(x)\n"
        self.check_steps(text, "behavior of compat.v1")

    @parameterized.parameters(
        ("", "", ["LSC419 `Net`", "LSC417 `net.build`"], []),
        ("    def build(self, shape): pass\n", "", ["LSC419 `Net`"], []),
        ("", "tf.train.experimental.LossScale\n", ["LSC417 `net.build`"], ["LSC419 `self.ema`"]),
    )
    def test_a_model_of_another_file(self, method, ours, in_train, in_model):
        head = f"import tensorflow as tf\n{ours}"
        model = f"class Net(tf.keras.Model):\n{method}    def f(self):\n        self.ema = {{}}\n"
        for value, number in (("[tf.Variable(v) for v in self.variables]", 1), ("None", 0)):
            self.write("model.py", head + model.format(value))
            self.write(
                "train.py", HEAD + "from model import Net\nnet = Net()\nnet.build((None, 4))\n"
            )
            self.write("save.py", "model.save_weights(path)\n")
            for paths, saves in ((["."], 1), (["model.py", "train.py"], 0)):
                err = call(*paths)[2]
                for file, found in (("train.py", in_train), ("model.py", in_model)):
                    lines = [line for line in err.splitlines() if file in line and "LSC4" in line]
                    expected = [each for each in found if "419" not in each or number * saves]
                    self.assertLen(lines, len(expected), err)
                    for line, each in zip(lines, expected):
                        self.assertIn(f": {each}: on Keras 3 ", line)

    def test_older_versions(self):
        self.check_steps(f"{HEAD}tf.layers.dense(x)", to="1.15")
        self.check_steps(f"{HEAD}tf.layers.dense(x)", "upgrade", "behavior", to="2.15")
        self.check_steps(f"{HEAD}tf.contrib.slim.batch_norm(x)", "slim", to="2.15")
        os.environ[SWITCH] = "1"
        self.check_steps(f"{HEAD}tf.layers.dense(x)", "upgrade", "behavior")

    def test_files_without_loss_scaling_have_none(self):
        self.check_steps("import tensorflow as tf\ntf.layers.dense(tf)")

    def test_other_names_of_contrib_are_counted(self):
        text = "import tensorflow as tf\ntf.contrib.slim.{0}, tf.contrib.slim.y, tf.contrib.eager"
        for name in ("a.py", "b.py"):
            self.write(name, text.format(name[0]))
        self.write("c.py", HEAD + "tf.contrib.layers\n" * 3)
        code, _, err = call("a.py", "b.py")
        self.assertEqual(code, 0)
        self.assertIn("0 places left to a person", err)
        self.assertIn(
            "1. `tf.contrib` was removed in TensorFlow 2.0. Files without loss scaling have 6 names"
            " of it in 2 files (`slim` 4, `eager` 2): `--contrib` lists them, with what to write.",
            err,
        )
        self.assertNotIn("tf.contrib", call("a.py", "--to", "1.15")[2])
        code, _, err = call(".", "--contrib")
        self.assertEqual(code, 1)
        self.assertIn("a.py:2:1: LSC211 `tf.contrib.slim.a` was removed in TensorFlow 2.0", err)
        self.assertIn("c.py:3:1: LSC211 `tf.contrib.layers` was removed in TensorFlow 2.0", err)
        self.assertIn(", 3 times in this file\n", err)
        self.assertIn("7 places left to a person", err)
        self.assertNotIn("without loss scaling", err)

    def test_names_of_contrib_are_counted_or_reported(self):
        check = "isinstance(o, tf.keras.mixed_precision.LossScaleOptimizer)\ntf.contrib.slim\n"
        self.write("a.py", "import tensorflow as tf\n" + check)
        made = "tf.keras.mixed_precision.LossScaleOptimizer(o, dynamic={})\n"
        self.write("b.py", "import tensorflow as tf\n" + made.format(True))
        for option in ("--diff", "--write"):
            _, _, err = call(".", option)
            self.assertIn("LSC211 `tf.contrib.slim`", err)
            self.assertNotIn("without loss scaling", err)
        self.write("a.py", HEAD + "tf.contrib.slim  # tf-lossscale: checked\n")
        self.assertNotIn("without loss scaling", call("a.py")[2])

    def test_what_is_listed(self):
        code = "tf.placeholder, tf.Session, tf.log, tf.to_float, tf.placeholder\n"
        for number in range(6):
            self.write(f"{number} .py", HEAD + code)
        self.write("2 .py", f"{HEAD}{code}if __name__ == '__main__': main()\n")
        _, _, err = call(".")
        self.assertIn(
            "1. ./0 .py, ./1 .py, ./2 .py, ./3 .py and 2 more files (`tf.placeholder`,"
            " `tf.Session`, `tf.log` and 1 more names): only `tf.compat.v1` has this",
            err,
        )
        self.assertIn(f"\n    {UPGRADE} --infile './5 .py' --outfile './5 .py'\n", err)
        self.assertIn("2. In ./2 .py, below the imports", err)
        with_line = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n"
        main = "if __name__ == '__main__': main()\n"
        self.write("main.py", with_line + main)  # Another program.
        self.assertIn("2. In ./2 .py, below the imports", call(".")[2])
        self.write("3 .py", f"{HEAD}{code}{main}")
        self.assertIn("2. In ./2 .py, ./3 .py, below the imports", call(".")[2])
        self.write("main.py", with_line)  # They may import it.
        self.assertNotIn("2. In", call(".")[2])

    def test_where_they_are_said(self):
        self.write("a.py", HEAD + "tf.placeholder\ntf.contrib.mixed_precision.LossScaleOptimizer\n")
        for option in ("--diff", "--write"):
            code, out, err = call("a.py", option)
            self.assertEqual(code, 0)
            self.assertEqual(out.count(b"\n+"), option == "--diff" and 2)
            self.assertIn("0 not handled\n\nnext, on TensorFlow 2.21:\n\n1. a.py (", err)
        self.assertNotIn("next, on", call("a.py", "--check")[2])

    @parameterized.parameters("", "2", "1.14", "two", "2.x", "2.21rc0")
    def test_no_version(self, version):
        code, _, err = call("a.py", "--to", version)
        self.assertEqual(code, 2)
        self.assertIn(
            f"--to takes a version of TensorFlow, 1.15 or later, such as 2.15, not {version!r}", err
        )

    def test_a_check_in_a_file_that_was_not_named(self):
        made = "opt = tf.keras.mixed_precision.LossScaleOptimizer(opt, True)\n"
        for code, paths, is_said in (
            (made, ["a.py"], 1),
            (made, ["."], 0),
            ("tf.nn\n", ["a.py"], 0),
        ):
            self.write("a.py", "import tensorflow as tf\ntf.nn\n" + code)
            for option in ("--check", "--write"):
                self.assertEqual(call(*paths, option)[2].count("name all files, or"), is_said)
        self.assertNotIn("name all files, or", call("a.py")[2])


class TableTest(absltest.TestCase):
    def test_the_names_of_tensorflow_1_are_in_compat_v1_alone(self):
        tf = pytest.importorskip("tensorflow")
        if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 0):
            self.skipTest("all names are those of TensorFlow 1")
        for name in dir(tf):
            self.assertFalse(_next._TENSORFLOW_1.match(name), name)
        for part in ("train", "losses", "metrics", "summary", "nn", "data", "image"):
            for name in dir(getattr(tf, part, None)):
                self.assertFalse(_next._TENSORFLOW_1.match(f"{part}.{name}"), f"{part}.{name}")
        found = [name for name in dir(tf.compat.v1) if _next._TENSORFLOW_1.match(name)]
        self.assertGreater(len(found), 40)

    def test_the_line_for_behavior_runs_below_either_import(self):
        tf = pytest.importorskip("tensorflow")
        if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 3):
            self.skipTest("`compat.v1` has no `compat.v1` of its own there")
        for module in (tf, tf.compat.v1):
            self.assertTrue(callable(module.compat.v1.disable_v2_behavior))
