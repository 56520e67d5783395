"""On Keras 3: what the class has and keeps, beside Keras' own class in the same process."""

import copy

import numpy as np
import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer


def array(variable):
    return np.array(variable.numpy())


class Keras3ClassTest(modes.EagerTestCase):
    @keras_homes.each(("ours", "theirs"), ("ours", "theirs"), kind="keras3")
    def test_checkpoints_of_either_are_whole_for_the_other(self, home, saves, restores):
        classes = {"ours": Stable, "theirs": home.own()}

        def make(which):
            variable = home.variable([1.0, 2.0])
            opt = classes[which](home.Adam(0.5), initial_scale=8.0, dynamic_growth_steps=4)
            opt.build([variable])
            return opt, variable

        opt, variable = make(saves)
        opt.apply([tf.constant([np.inf, 1.0])], [variable])
        opt.apply([tf.constant([4.0, 8.0])], [variable])
        path = tf.train.Checkpoint(opt=opt, w=variable).save(self.get_temp_dir() + "/c")
        new, restored = make(restores)
        status = tf.train.Checkpoint(opt=new, w=restored).restore(path)
        status.assert_existing_objects_matched()
        status.assert_consumed()
        self.assertEqual(array(new.dynamic_scale), 4.0)
        self.assertEqual(array(new.step_counter), 1)
        self.assertEqual(array(new.inner_optimizer.iterations), 1)
        for each in ((opt, variable), (new, restored)):
            each[0].apply([tf.constant([4.0, 8.0])], [each[1]])
        self.assertAllEqual(array(variable), array(restored))

    @keras_homes.each(kind="keras3")
    def test_a_checkpoint_that_has_the_loss_scale_too_is_whole(self, home):
        """As those of a user's own loss scale have."""

        class Mine(tf_lossscale_compat.DynamicLossScale):
            pass

        variable = home.variable(1.0)
        opts = [
            Older(home.SGD(1.0), cls(8.0)) for cls in (Mine, tf_lossscale_compat.DynamicLossScale)
        ]
        for opt in opts:
            opt.build([variable])
        opts[0].apply([tf.constant(np.inf)], [variable])
        path = tf.train.Checkpoint(opt=opts[0]).save(self.get_temp_dir() + "/c")
        self.assertTrue([n for n, _ in tf.train.list_variables(path) if "opt/loss_scale/" in n])
        tf.train.Checkpoint(opt=opts[1]).restore(path).assert_consumed()
        self.assertEqual(array(opts[1].dynamic_scale), 4.0)

    def test_arguments_that_belong_to_the_inner_optimizer(self):
        for home in keras_homes.available():
            for name in (
                "clipnorm",
                "clipvalue",
                "ema_momentum",
                "ema_overwrite_frequency",
                "global_clipnorm",
                "gradient_accumulation_steps",
                "loss_scale_factor",
                "use_ema",
                "weight_decay",
                "learning_rate",
                "no_such_argument",
            ):
                kind = ValueError if home.kind == "keras3" else TypeError
                with self.subTest(f"{home.kind} {name}"):
                    inner = home.SGD(1.0)
                    with self.assertRaisesRegex(kind, name):
                        Stable(inner, **{name: 2})
                    Stable(inner)  # Nothing was kept of the first.

    @keras_homes.each(kind="keras3")
    def test_a_name_that_is_set_is_kept_by_configs_and_copies(self, home):
        opt = Stable(home.SGD(1.0), name="first")
        opt.name = "mine"
        self.assertEqual(opt.get_config()["name"], "mine")
        self.assertEqual(type(opt).from_config(opt.get_config()).name, "mine")
        self.assertEqual(copy.deepcopy(opt).name, "mine")

    @keras_homes.each(kind="keras3")
    def test_configs_have_the_entries_of_keras_own_class(self, home):
        entries = {"name", "inner_optimizer", "initial_scale", "dynamic_growth_steps"}
        config = Stable(home.SGD(1.0)).get_config()
        self.assertEqual(set(config), entries)
        self.assertLessEqual(entries, set(home.own()(home.SGD(1.0)).get_config()))
        opt = home.own().from_config(
            dict(config, inner_optimizer=home.keras.optimizers.serialize(home.SGD(1.0)))
        )
        self.assertEqual(opt.initial_scale, config["initial_scale"])

    @keras_homes.each((True, False), kind="keras3")
    def test_setting_where_the_scale_begins_and_how_it_grows(self, home, built):
        seen = []
        for cls in (Stable, home.own()):
            variable = home.variable(1.0)
            opt = cls(home.SGD(1.0), initial_scale=8.0)
            if built:
                opt.build([variable])
            opt.initial_scale = 32.0
            opt.dynamic_growth_steps = 2
            scales = [float(np.array(opt.scale_loss(tf.constant(1.0))))]
            for _ in range(2):
                opt.apply([tf.constant(0.0)], [variable])
                scales.append(array(opt.dynamic_scale))
            config = opt.get_config()
            seen.append([*scales, config["initial_scale"], config["dynamic_growth_steps"]])
        self.assertEqual(*seen)
        self.assertEqual(seen[0][0], 8.0 if built else 32.0)

    @keras_homes.each(kind="keras3")
    def test_setting_what_cannot_be(self, home):
        opt = Stable(home.SGD(1.0), initial_scale=8.0)
        with self.assertRaisesRegex(ValueError, "initial_scale.*-1"):
            opt.initial_scale = -1.0
        with self.assertRaisesRegex(ValueError, "dynamic_growth_steps.*2.5"):
            opt.dynamic_growth_steps = 2.5
        self.assertEqual(opt.initial_scale, 8.0)
        opt = Stable(home.SGD(1.0), False, 8.0)
        for name in ("initial_scale", "dynamic_growth_steps"):
            with self.assertRaisesRegex(AttributeError, f"{name} can be set where"):
                setattr(opt, name, 16.0)

    @keras_homes.each(("ours", "theirs"), kind="keras3")
    def test_stateless_apply(self, home, which):
        cls = Stable if which == "ours" else home.own()
        variable = home.variable(1.0)
        opt = cls(home.SGD(1.0))
        opt.build([variable])
        with self.assertRaises(ValueError) as raised:
            opt.stateless_apply(opt.variables, [tf.constant(1.0)], [variable])
        if which == "ours":  # No stateless_apply works on TensorFlow, nor the inner optimizer's.
            self.assertRegex(str(raised.exception), r"Call apply\(grads, .*tf.function[^;]*\.$")
            self.assertEqual((array(opt.dynamic_scale), array(variable)), (2.0**15, 1.0))
