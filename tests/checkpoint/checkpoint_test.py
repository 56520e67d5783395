"""Loss scales found in every kind of checkpoint and carried into every kind of loss scale."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import struct
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, originals, replicas
from tests.data import write_checkpoints
from tf_lossscale_compat import checkpoint, loss_scale
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

DATA = os.path.join(originals.ROOT, "tests", "data")
VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])


def data(*parts):
    return os.path.join(DATA, *parts)


def recorded(case):
    """The loss scales and counters of a recorded case, {name: value}."""
    values, _ = write_checkpoints.load(data(case, "continued.json"))
    return {
        name: struct.unpack(
            ">f" if "loss_scale" in name else {8: ">i", 16: ">q"}[len(bits)], bytes.fromhex(bits)
        )[0]
        for name, bits in values.items()
        if "loss_scale" in name or "steps" in name
    }


# (path, layout, keys of the loss scales)
RECORDED = [
    ("contrib_two_optimizers/saved", "contrib by name", "loss_scale", "loss_scale_1"),
    ("contrib_scoped/saved", "contrib by name", "scaling/loss_scale"),
    ("contrib_accumulation/saved", "contrib by name", "loss_scale"),
    (
        "mixed_precision_optimizers/saved",
        "dynamic by name",
        "current_loss_scale",
        "current_loss_scale_1",
    ),
    ("object_optimizer/saved-1", "dynamic by object", "optimizer/loss_scale"),
]
KERAS = [
    (data("keras3", "saved-1"), "keras3 by object", "optimizer"),
    (data("tf_keras", "saved-1"), "dynamic by object", "optimizer/loss_scale"),
]

# One of each layout, with the key where there are several.
SOURCES = {
    "contrib": (data("contrib_two_optimizers", "saved"), "loss_scale"),
    "contrib scoped": (data("contrib_scoped", "saved"), None),
    "dynamic": (data("mixed_precision_optimizers", "saved"), "current_loss_scale_1"),
    "dynamic object": (data("object_optimizer", "saved-1"), None),
    "keras3 object": (data("keras3", "saved-1"), None),
    "tf_keras": (data("tf_keras", "saved-1"), None),
}


@functools.lru_cache(maxsize=None)
def source(name):
    return checkpoint.read(*SOURCES[name])


def manager():
    return contrib.ExponentialUpdateLossScaleManager(8.0, 3)


def dynamic():
    return experimental.DynamicLossScale(8.0, 3)


def v1_optimizer():
    return tf1.train.GradientDescentOptimizer(0.5)


def variables_of(target):
    """The variables of a target's loss scale: scale, good steps, maybe bad steps."""
    for holder in ("_loss_scale_manager", "_loss_scale", "manager"):
        if not hasattr(target, "_num_good_steps"):
            target = getattr(target, holder, target)
    of_loss_scale = hasattr(target, "_current_loss_scale")
    scale = target._current_loss_scale if of_loss_scale else target._loss_scale
    bad_steps = [] if of_loss_scale else [target._num_bad_steps]
    return [scale, target._num_good_steps, *bad_steps]


def mixed(scale):
    return experimental.MixedPrecisionLossScaleOptimizer(v1_optimizer(), scale)


# {name: function that returns a target}
TARGETS = {
    "manager": manager,
    "loss scale": dynamic,
    "loss scale of a manager": lambda: loss_scale.get(manager()),
    "contrib optimizer": lambda: contrib.LossScaleOptimizer(v1_optimizer(), manager()),
    "v1 optimizer": lambda: mixed(dynamic()),
    "v1 optimizer, manager": lambda: mixed(manager()),
}
if originals.contrib():
    TARGETS["TensorFlow's manager"] = lambda: originals.contrib().ExponentialUpdateLossScaleManager(
        8.0, 3
    )
if originals.experimental():
    TARGETS["TensorFlow's v1 optimizer"] = lambda: (
        originals.experimental().MixedPrecisionLossScaleOptimizer(
            v1_optimizer(), originals.experimental().DynamicLossScale(8.0, 3)
        )
    )


@contextlib.contextmanager
def warnings():
    """Yields a list of the warnings of this package."""
    found = []
    with mock.patch.object(logging, "warning", lambda text, *values: found.append(text % values)):
        yield found


class CheckpointTestCase(tf.test.TestCase, parameterized.TestCase):
    def folder(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def saved(self, make, **options):
        """The prefix of what a Saver with these options writes of a graph that `make` makes."""
        prefix = os.path.join(self.folder(), "saved")
        with tf.Graph().as_default(), tf1.Session() as session:
            make()
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver(**options).save(session, prefix)
        return prefix

    def assert_fails(self, path, *patterns, **arguments):
        with self.assertRaises(checkpoint.CheckpointError) as caught:
            checkpoint.read(path, **arguments)
        for pattern in patterns:
            self.assertRegex(str(caught.exception), pattern)
        return str(caught.exception)


class ReadTest(CheckpointTestCase):
    @parameterized.parameters(*RECORDED)
    def test_what_the_originals_wrote(self, path, layout, *keys):
        values, expected = recorded(os.path.dirname(path)), []
        for key in keys:
            # Of objects, continued.json has the names of variables without the path to them.
            scale = key.replace("optimizer/", "")
            good = scale.replace("current_", "").replace("loss_scale", "good_steps")
            bad = values.get(scale.replace("loss_scale", "bad_steps"))
            state = checkpoint.LossScaleState(values[scale], values[good], bad, layout, key)
            expected.append(state)
        self.assertEqual(expected, checkpoint.find(data(path)))

    @parameterized.parameters(*KERAS)
    def test_what_keras_wrote(self, path, layout, key):
        with open(os.path.join(os.path.dirname(path), "state.json")) as file:
            saved = json.load(file)
        expected = checkpoint.LossScaleState(saved["scale"], saved["steps"], None, layout, key)
        self.assertEqual(expected, checkpoint.read(path))
        self.assertIsInstance(expected.good_steps, int)

    @parameterized.parameters("", "a", "b/c")
    def test_both_generations_in_one_scope(self, scope):
        """Their counters share a name, which the graph numbers; and so may a user's variables."""
        prefix = os.path.join(self.folder(), "saved")
        states = [
            checkpoint.LossScaleState(2.0**number, number, 10 * number, "", "")
            for number in range(4)
        ]
        with tf.Graph().as_default(), tf1.Session() as session, warnings():
            scoped = tf1.variable_scope(scope, use_resource=True)
            with scoped if scope else contextlib.nullcontext():
                made = [manager(), dynamic(), manager(), dynamic()]
                if scope == "a":
                    tf1.Variable(4.0, name="loss_scale")
                    tf1.Variable([4.0], name="current_loss_scale")
                    tf1.Variable("text", name="good_steps")
                updates = [checkpoint.assign(state, one) for state, one in zip(states, made)]
            session.run(tf1.global_variables_initializer())
            session.run(updates)
            tf1.train.Saver().save(session, prefix)
        start = scope + "/" if scope else ""
        expected = [
            (start + "current_loss_scale", 2.0, 1, None),
            (start + "current_loss_scale_1", 8.0, 3, None),
            (start + "loss_scale", 1.0, 0, 0),
            (start + "loss_scale_1", 4.0, 2, 20),
        ]
        found = [(s.key, s.scale, s.good_steps, s.bad_steps) for s in checkpoint.find(prefix)]
        self.assertEqual(expected, found)

    def test_number_that_no_graph_makes(self):
        prefix = self.saved(lambda: (manager(), tf1.Variable(4.0, name="loss_scale_0")))
        self.assertEqual(
            ("loss_scale", 8.0), (checkpoint.read(prefix).key, checkpoint.read(prefix).scale)
        )

    def test_counter_of_a_user_among_those_of_a_manager(self):
        """It is not known which is whose, and none is taken."""
        prefix = self.saved(lambda: (tf1.Variable(7, name="good_steps"), manager()))
        self.assert_fails(prefix, "no dynamic loss scale", "good_steps_1")

    def test_loss_scale_under_other_names_of_an_object_graph(self):
        """The place of an object does not matter, nor the name that a variable was saved under."""
        with modes.eager_mode():
            inner = dynamic()
            inner.update([tf.constant(1.0)])
            made = tf.train.Checkpoint(
                # Nearer to the root, so this is the name that it is saved under.
                watched=inner.current_loss_scale,
                trainer=tf.train.Checkpoint(scales=tf.train.Checkpoint(first=inner)),
                manager=manager(),
            )
            path = made.save(os.path.join(self.folder(), "saved"))
        names = [name for name, _ in tf.train.list_variables(path)]
        self.assertIn("watched/.ATTRIBUTES/VARIABLE_VALUE", names)
        found = checkpoint.find(path)
        self.assertEqual(
            [
                (8.0, 0, 0, "contrib by object", "manager"),
                (8.0, 1, None, "dynamic by object", "trainer/scales/first"),
            ],
            [tuple(state) for state in found],
        )

    def test_scale_without_counters_of_their_types(self):
        with modes.eager_mode():
            path = tf.train.Checkpoint(
                weighted=tf.train.Checkpoint(loss_scale=tf.Variable(2.0)),
                averaged=tf.train.Checkpoint(
                    current_loss_scale=tf.Variable(2.0), good_steps=tf.Variable(0.5)
                ),
                scaled=dynamic(),
            ).write(os.path.join(self.folder(), "saved"))
        self.assertEqual("scaled", checkpoint.read(path).key)

    def test_loss_scale_at_the_root(self):
        with modes.eager_mode():
            made = dynamic()
            path = tf.train.Checkpoint(
                current_loss_scale=made.current_loss_scale, good_steps=made.good_steps
            ).write(os.path.join(self.folder(), "saved"))
        self.assertEqual(".", checkpoint.read(path).key)


class PathTest(CheckpointTestCase):
    """The checkpoint that a path means."""

    def copy(self, case, to):
        os.makedirs(to, exist_ok=True)
        for name in os.listdir(data(case)):
            shutil.copy(data(case, name), to)

    @parameterized.parameters(None, 3, [[]])
    def test_no_path(self, path):
        with self.assertRaisesRegex(TypeError, "path must be a str or path-like, got"):
            checkpoint.read(path)

    @parameterized.parameters(
        "{}/saved.index".format,
        "{}/saved.data-00000-of-00001".format,
        "file://{}/saved".format,  # As a remote path, which TensorFlow reads.
        "file://{}".format,
        str,  # The folder, which holds no other.
        os.fsencode,
        pathlib.Path,
    )
    def test_ways_to_name_it(self, way):
        self.assertEqual(source("contrib scoped"), checkpoint.read(way(data("contrib_scoped"))))

    def test_folder_latest(self):
        folder = self.folder()
        with tf.Graph().as_default(), tf1.Session() as session:
            made = manager()
            saver = tf1.train.Saver()
            for step, scale in enumerate([32.0, 16.0, 4.0]):
                state = checkpoint.LossScaleState(scale, 0, 0, "", "")
                checkpoint.assign(state, made, session)
                saver.save(session, os.path.join(folder, "model"), global_step=step)
        self.assertEqual(4.0, checkpoint.read(folder).scale)
        self.assertEqual(16.0, checkpoint.read(os.path.join(folder, "model-1")).scale)
        moved = os.path.join(self.folder(), "moved")  # The file `checkpoint` has absolute paths.
        shutil.copytree(folder, moved)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        self.assertEqual(4.0, checkpoint.read(moved).scale)
        for ending in (".index", ".data-00000-of-00001"):
            os.remove(os.path.join(moved, "model-2" + ending))
        self.assert_fails(moved, "names '.*model-2', which is not there")

    def test_folder_with_several(self):
        folder = self.folder()
        for case in ("keras3", "contrib_scoped"):
            self.copy(case, folder)
        os.remove(os.path.join(folder, "checkpoint"))
        message = self.assert_fails(folder, "holds 2 checkpoints", "Give the path of one")
        self.assertIn("'saved.index'", message)
        for number in range(30):
            open(os.path.join(folder, f"x{number}.index"), "w").close()
        message = self.assert_fails(folder, "holds 32 checkpoints")
        self.assertEqual(20, 1 + message.count("', '"))

    def test_folder_of_the_name_of_a_checkpoint(self):
        folder = self.folder()
        self.copy("contrib_scoped", folder)
        os.mkdir(os.path.join(folder, "saved"))
        path = os.path.join(folder, "saved")
        self.assertEqual(source("contrib scoped"), checkpoint.read(path))

    def test_empty_folder(self):
        self.assert_fails(self.folder(), "holds no checkpoints")

    def test_saved_model(self):
        folder = self.folder()
        with modes.eager_mode():
            module = tf.Module() if hasattr(tf, "Module") else tf.train.Checkpoint()
            module.optimizer = mixed(dynamic())
            tf.saved_model.save(module, folder)
        self.assertEqual(
            (8.0, 0, None, "dynamic by object", "optimizer/loss_scale"),
            tuple(checkpoint.read(folder)),
        )

    def test_checkpoint_of_tensorflow_0(self):
        prefix = self.saved(manager, write_version=1)
        for path in (prefix, os.path.dirname(prefix)):
            self.assert_fails(path, "V1", "save it again")


class ChoiceTest(CheckpointTestCase):
    PATH = data("contrib_two_optimizers", "saved")

    def test_several_are_listed(self):
        message = self.assert_fails(self.PATH, "holds 2 loss scales: choose one with key=")
        self.assertIn("key='loss_scale' (contrib by name, scale 3276.800048828125)", message)
        self.assertIn("key='loss_scale_1' (contrib by name, scale 1)", message)

    def test_key_chooses(self):
        for state in checkpoint.find(self.PATH):
            self.assertEqual(state, checkpoint.read(self.PATH, key=state.key))

    def test_unknown_key(self):
        message = self.assert_fails(self.PATH, "holds no loss scale 'scale', but", key="scale")
        self.assertIn("key='loss_scale_1'", message)

    def test_none(self):
        path = self.saved(
            lambda: (contrib.FixedLossScaleManager(8.0), tf1.Variable(1.0, name="weight"))
        )
        self.assertEmpty(checkpoint.find(path))
        self.assert_fails(path, "holds no dynamic loss scale", "a fixed one has no state", "weight")


class AssignTest(CheckpointTestCase):
    def check(self, state, variables, values):
        bad = [state.bad_steps or 0] if len(variables) == 3 else []
        self.assertEqual([state.scale, state.good_steps, *bad], [value.item() for value in values])

    @crossed.parameters(
        *[
            (source, target, mode)
            for source in SOURCES
            for target in TARGETS
            for mode in ("graph_v1", "graph_v2", "eager")
            if mode == "eager" or source in ("contrib scoped", "dynamic", "keras3 object")
        ]
    )
    def test_every_layout_into_every_target(self, name, target, mode):
        state = source(name)
        with modes.entered(mode) as entered, warnings() as warned:
            made = TARGETS[target]()
            variables = variables_of(made)
            result = checkpoint.assign(state, made)
            if mode == "eager":
                self.assertIsNone(result)
            else:
                entered.run(result)
            self.check(state, variables, entered.value(variables))
            dropped = len(variables) == 2 and state.bad_steps
            self.assertLen(warned, 1 if dropped else 0)
            if dropped:
                self.assertIn("bad_steps=1 is dropped", warned[0])

    def test_in_a_session(self):
        with modes.entered("graph_v1") as entered:
            made, state = TARGETS["contrib optimizer"](), source("contrib scoped")
            self.assertIsNone(checkpoint.assign(state, made, session=entered._session))
            variables = variables_of(made)
            values = entered._session.run(variables)  # Nothing else has initialized them.
        self.check(state, variables, values)

    def test_operation_is_of_the_targets_graph(self):
        with tf.Graph().as_default() as graph:
            with tf.name_scope("train"):
                made = manager()
        operation = checkpoint.assign(source("contrib scoped"), made)
        self.assertIs(graph, operation.graph)
        with tf1.Session(graph=graph) as session:
            session.run(operation)
            self.assertEqual(source("contrib scoped").scale, session.run(made._loss_scale))

    def test_inside_a_function_being_traced(self):
        with modes.eager_mode():
            made = dynamic()

            @tf.function
            def function():
                checkpoint.assign(source("tf_keras"), made)

            function()
            self.assertEqual(512.0, made().numpy())

    @parameterized.parameters("eager", "graph_v2")
    def test_under_a_strategy(self, mode):
        if mode == "eager" and originals.IS_TF1:
            self.skipTest("TensorFlow 1.15 has strategies in graphs only")
        strategy = replicas.strategy("mirrored_2")
        with modes.entered(mode) as entered:
            with strategy.scope():
                made = manager()
            result = checkpoint.assign(source("contrib scoped"), made)
            if mode != "eager":
                entered.run(result)
            with strategy.scope():
                copies = [
                    strategy.experimental_local_results(variable) for variable in made.variables()
                ]
            for each in zip(*copies):  # The copies of one replica.
                self.check(source("contrib scoped"), each, entered.value(list(each)))

    def test_count_that_the_counter_cannot_hold(self):
        state = checkpoint.LossScaleState(8.0, 2**40, None, "", "")
        with modes.eager_mode():
            made = manager()
            checkpoint.assign(state, made)
            self.assertEqual(2**31 - 2, made._num_good_steps.numpy())
            made.update_loss_scale(True)
            self.assertEqual(16.0, made.get_loss_scale().numpy())

    @parameterized.parameters(
        (lambda: experimental.FixedLossScale(8.0), ValueError, "has a fixed loss scale"),
        (lambda: contrib.FixedLossScaleManager(8.0), ValueError, "has a fixed loss scale"),
        (v1_optimizer, TypeError, "target must be a dynamic loss scale"),
        (lambda: None, TypeError, "target must be .* got None"),
        (lambda: 8.0, TypeError, "target must be .* got 8.0"),
        (lambda: experimental.DynamicLossScale, TypeError, "target must be"),
        (
            lambda: experimental.DynamicLossScale(8.0, max_loss_scale=64.0),
            ValueError,
            "above the target's max_loss_scale=64.0",
        ),
        (
            lambda: experimental.DynamicLossScale(2.0**20, min_loss_scale=1024.0),
            ValueError,
            "below the target's min_loss_scale=1024.0",
        ),
    )
    def test_refused_target(self, make, error, message):
        with modes.eager_mode():
            target = make()
            before = getattr(target, "current_loss_scale", None)
            before = None if isinstance(target, type) or before is None else before.numpy()
            with self.assertRaisesRegex(error, message):
                checkpoint.assign(source("contrib scoped"), target)
            if before is not None:
                self.assertEqual(before, target.current_loss_scale.numpy())

    @parameterized.parameters(
        ((float("nan"), 0, 0), "state.scale must be finite in float32, got nan"),
        ((float("inf"), 0, 0), "state.scale must be finite in float32, got inf"),
        ((0.0, 0, 0), "state.scale must be above zero in float32"),
        ((1e39, 0, 0), "state.scale must be finite in float32"),
        (("8", 0, 0), "state.scale must be a real number .*, got '8'"),
        ((8.0, -1, 0), "state.good_steps must be an int of at least 0, got -1"),
        ((8.0, None, 0), "state.good_steps must be an int of at least 0, got None"),
        ((8.0, 0, -1), "state.bad_steps must be an int of at least 0, got -1"),
        ((8.0, 0, 1.5), "state.bad_steps must be an int of at least 0, got 1.5"),
    )
    def test_refused_state(self, values, message):
        with modes.eager_mode():
            made = manager()
            with self.assertRaisesRegex(ValueError, message):
                checkpoint.assign(checkpoint.LossScaleState(*values, "", ""), made)
            self.assertEqual([8.0, 0, 0], [value.numpy() for value in made.variables()])

    def test_no_state(self):
        with self.assertRaisesRegex(TypeError, "state must be a LossScaleState.* got 8.0"):
            checkpoint.assign(8.0, None)

    def test_scale_below_the_floor_warns(self):
        with modes.eager_mode(), warnings() as warned:
            made = manager()
            checkpoint.assign(checkpoint.LossScaleState(0.5, 0, 0, "", ""), made)
            self.assertEqual(0.5, made.get_loss_scale().numpy())
        self.assertLen(warned, 1)
        self.assertIn("below 1", warned[0])

    def test_session_for_an_eager_target(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            pass
        with modes.eager_mode():
            made = manager()
            with self.assertRaisesRegex(ValueError, "session must be None"):
                checkpoint.assign(source("contrib scoped"), made, session=session)


def own_of_keras(home, dynamic=True):
    """Keras' own loss-scale optimizer, fixed or one that grows after two finite steps."""
    if home.kind == "keras3":
        return home.LossScaleOptimizer(home.SGD(0.5), initial_scale=8.0, dynamic_growth_steps=2)
    if VERSION < (2, 4):
        scale = originals.experimental().DynamicLossScale(8.0, 2) if dynamic else 8.0
        return home.own()(home.SGD(0.5), scale)
    cls = type(home.wrapped_in_own(home.SGD(0.5)))
    return cls(home.SGD(0.5), dynamic, 8.0, 2 if dynamic else None)


def scale_of(optimizer):
    if getattr(optimizer, "dynamic_scale", None) is not None:
        return float(optimizer.dynamic_scale.numpy())
    scale = optimizer.loss_scale
    return float(np.asarray(scale() if callable(scale) else scale))


class KerasTest(CheckpointTestCase, modes.EagerTestCase):
    """Keras' own classes and this package's, whose loss scale may be of any generation."""

    def wrappers(self, home, weight):
        """Yields (optimizer that trains `weight`, its manager or None)."""
        managed, own = manager(), own_of_keras(home)
        if home.kind == "keras3":
            own.build([weight])
        yield own, None
        yield mixed_precision.LossScaleOptimizer(home.SGD(0.5), True, 8.0, 2), None
        yield mixed_precision.experimental.LossScaleOptimizer(home.SGD(0.5), dynamic()), None
        yield mixed_precision.experimental.LossScaleOptimizer(home.SGD(0.5), managed), managed

    @keras_homes.each(["contrib scoped", "keras3 object"])
    def test_round_trip(self, home, name):
        state = source(name)
        for made, managed in self.wrappers(home, tf.Variable([1.0])):
            self.assertIsNone(checkpoint.assign(state, made))
            self.assertEqual(state.scale, scale_of(made))
            path = tf.train.Checkpoint(o=made).save(os.path.join(self.folder(), "saved"))
            bad_steps = None if managed is None else state.bad_steps or 0
            again = checkpoint.read(path)
            self.assertEqual((state.scale, state.good_steps, bad_steps), again[:3])

    @keras_homes.each()
    def test_refused(self, home):
        wrapper, fixed = mixed_precision.experimental.LossScaleOptimizer, "has a fixed loss scale"
        bounded = experimental.DynamicLossScale(8.0, max_loss_scale=64.0)
        own = fixed
        if home.kind == "keras3":
            own = "target has no variables for its loss scale yet: call its build"
        for made, message in (
            (mixed_precision.LossScaleOptimizer(home.SGD(0.5), False, 8.0), fixed),
            (wrapper(home.SGD(0.5), contrib.FixedLossScaleManager(8.0)), fixed),
            (wrapper(home.SGD(0.5), bounded), "above the target's max_loss_scale"),
            (own_of_keras(home, dynamic=False), own),
        ):
            with self.assertRaisesRegex(ValueError, message):
                checkpoint.assign(source("contrib scoped"), made)


class NoCheckpointTest(CheckpointTestCase):
    """Files that are none; those with changed bytes are in hostile_files_test.py."""

    @parameterized.parameters("", "no/such/file", "\0", "a" * 5000, "/dev/null", "/dev/zero")
    def test_no_file(self, path):
        self.assert_fails(path, "is neither a file nor a folder|Cannot read|no checkpoint")

    def test_folders_in_the_place_of_files(self):
        folder = self.folder()
        for name in ("saved.index", "checkpoint", "model.keras", "model.weights.h5"):
            os.mkdir(os.path.join(folder, name))
        for name in ("saved", "", "model.keras", "model.weights.h5", "saved.index"):
            self.assert_fails(os.path.join(folder, name))

    def test_missing_data(self):
        folder = self.folder()
        shutil.copy(data("contrib_scoped", "saved.index"), folder)
        self.assert_fails(folder, "saved.data-00000-of-00001")

    @parameterized.parameters("model.keras", "model.weights.h5", "model.h5", "model.hdf5")
    def test_file_of_keras(self, name):
        path = os.path.join(self.folder(), name)
        open(path, "w").close()
        message = "path must be a checkpoint .*, got a file of Keras, .*load the model and read"
        self.assert_fails(path, message, "`optimizer.loss_scale`")
        self.assert_fails(os.path.dirname(path), "holds no checkpoints")
