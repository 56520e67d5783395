"""Interprets programs with Keras' wrappers, for one of the two libraries."""

import contextlib
import copy
import os
import tempfile

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes, originals, replicas
from tests.differential import history
from tests.differential.v1_side import FAULTS, Slow, at_once
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
HOMES = {home.name: home for home in keras_homes.available()}
# Public attributes that a Keras' own class has, and this package's.
ATTRIBUTES = {
    "v2": ("dynamic", "initial_scale", "dynamic_growth_steps", "dynamic_counter", "loss_scale"),
    "keras3": ("initial_scale", "dynamic_growth_steps", "step_counter", "dynamic_scale"),
}
ATTRIBUTES["current"] = ATTRIBUTES["v2"]


def own_class(home, api):
    """The class of the installed Keras, or None where it has none of this API."""
    namespace = home.keras.mixed_precision
    if api == "experimental":
        return getattr(getattr(namespace, "experimental", None), "LossScaleOptimizer", None)
    if home.kind == "keras3":
        return home.optimizers.LossScaleOptimizer
    name = "LossScaleOptimizerV3" if home.name == "current" else "LossScaleOptimizer"
    return getattr(namespace, name, getattr(namespace, "LossScaleOptimizer", None))


class Side:
    """A model with three variables, an embedding's among them, and its optimizer."""

    def __init__(self, program, library):
        self.program, self.library = program, library
        name, self.api = program["family"].split()
        self.home = HOMES[name]
        self.steps, self.function, self.session, self.strategy = 0, {}, None, None
        if program["place"] == "mirrored":
            self.strategy = replicas.strategy("mirrored_2")
        self.initialized, self.built, self.slow = set(), False, Slow(program)
        if program["place"] == "graph":
            self.session = tf1.keras.backend.get_session()
        with self.scope():
            self.make()

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def make(self):
        layers, program = self.home.keras.layers, self.program
        ones = self.home.keras.initializers.Constant(0.25)
        stack = [layers.Embedding(4, 2, embeddings_initializer="ones"), layers.Flatten()]
        if program["noise"]:
            stack.append(layers.Dropout(0.5, seed=3))
        stack.append(layers.Dense(1, kernel_initializer=ones))
        if program["policy"] == "mixed_float16":  # The loss is to be of float32.
            stack.append(layers.Activation("linear", dtype="float32"))
        with self.home.policy(program["policy"]):
            self.model = self.home.model(*stack, inputs=(3,))
        self.variables = list(self.model.trainable_variables)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self):
        name, options = self.program["optimizer"]
        options = dict(options)
        if options["learning_rate"] == "schedule":
            schedules = self.home.keras.optimizers.schedules
            options["learning_rate"] = schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.25, 0.125])
        inner = getattr(self.home.optimizers, name)(**options)
        dynamic, start, growth = self.program["scale"]
        package = self.library == "package"
        if self.api == "experimental":
            home = experimental if package else originals.experimental()
            scale = home.DynamicLossScale(start, growth) if dynamic else start
            cls = (
                mixed_precision.experimental.LossScaleOptimizer
                if package
                else own_class(self.home, self.api)
            )
            return cls(inner, scale)
        cls = mixed_precision.LossScaleOptimizer if package else own_class(self.home, self.api)
        options = {"initial_scale": start}
        if dynamic:
            options["dynamic_growth_steps"] = growth
        elif self.home.kind != "keras3":
            options["dynamic"] = False
        return cls(inner, **options)

    def value(self, variable):
        if self.session:
            return self.run(variable)
        if self.strategy:
            variable = getattr(variable, "_value", variable)  # Of Keras 3's.
            return [copy.numpy() for copy in replicas.copies(self.strategy, variable)]
        return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)

    def run(self, fetches, feeds=None):
        fresh = [v for v in tf1.global_variables() if id(v) not in self.initialized]
        self.initialized.update(map(id, fresh))
        self.session.run([variable.initializer for variable in fresh])
        return self.session.run(fetches, feeds)

    def do(self, action):
        with self.scope():
            graph = tf1.get_default_graph() if self.session else None
            before = len(graph.get_operations()) if self.session else 0
            seen = getattr(self, "do_" + action[0])(*action[1:])
            if self.session:
                seen["operations"] = len(graph.get_operations()) - before
            if action[0] != "threads":
                seen.update(self.state())
        return seen

    def state(self):
        state = {f"weight {i}": self.value(v) for i, v in enumerate(self.model.weights)}
        inner = getattr(self.optimizer, "inner_optimizer", None) or self.optimizer._optimizer
        if self.home.kind == "v2":
            variables = inner.weights
        else:
            variables = self.home.variables(inner)
        state["names"] = [tail(variable) for variable in variables]
        state.update({f"inner {i} {tail(v)}": self.value(v) for i, v in enumerate(variables)})
        if not self.session:
            state.update(self.attributes())
        return state

    def attributes(self):
        found = {}
        names = ATTRIBUTES[self.home.kind] if self.api == "stable" else ("loss_scale",)
        if self.home.kind == "keras3" and not self.optimizer.built:
            names = ()  # Its own class makes its variables later.
        for name in (*names, "iterations", "learning_rate"):
            value = getattr(self.optimizer, name, None)
            if name == "loss_scale" and callable(value):
                value = value()
            if value is not None and not isinstance(value, (bool, int, float)):
                if isinstance(value, (tf.Tensor, tf.Variable)) or hasattr(value, "numpy"):
                    value = self.value(value)
                    value = float(np.ravel(value)[0])  # Objects and tensors stand for a number.
                else:
                    continue  # A schedule.
            found[name] = None if value is None else float(value)
        return found

    def coefs(self, fault):
        self.steps += 1
        arrays = []
        for replica in range(2 if self.strategy else 1):
            random = np.random.RandomState(self.steps)
            made = [random.uniform(-1, 1, v.shape).astype(np.float32) for v in self.variables]
            if fault is not None and fault[3] == replica:
                array = made[fault[1] % len(made)]
                array.flat[fault[2] % array.size] = FAULTS[fault[0]]
            arrays.append(made)
        return [np.stack([made[i] for made in arrays]) for i in range(len(self.variables))]

    def loss(self, coefs):
        terms = []
        for i, (variable, coef) in enumerate(zip(self.variables, coefs)):
            value = tf.convert_to_tensor(variable)
            if i == 0:  # The embedding's table, one row of it twice.
                indices = tf.constant([0, 2, 0])
                value, coef = tf.gather(variable, indices), tf.gather(coef, indices)
            terms.append(tf.reduce_sum(value * coef + 0.25 * value * value))
        return tf.add_n(terms)

    def step(self, way, *coefs):
        """A training step of one's own."""
        if self.strategy:
            coefs = [tf.gather(coef, replicas.replica_id()) for coef in coefs]
        else:
            coefs = [coef[0] for coef in coefs]
        opt, variables = self.optimizer, self.variables
        if way == "minimize":
            return opt.minimize(lambda: self.loss(coefs), variables)
        legacy = way in ("get_scaled_loss", "clipped")
        scale = opt.get_scaled_loss if legacy else getattr(opt, "scale_loss", None)
        if way == "applied_alone":
            scale = tf.identity
        if self.session:
            grads = tf1.gradients(scale(self.loss(coefs)), variables)
        else:
            with tf.GradientTape() as tape:
                loss = scale(self.loss(coefs))
            grads = tape.gradient(loss, variables)
        if legacy:
            grads = opt.get_unscaled_gradients(grads)
        if way in ("clipped", "clipped_after"):
            grads, _ = tf.clip_by_global_norm(grads, 0.5)
        if way == "apply":
            return opt.apply(grads, variables)
        return opt.apply_gradients(list(zip(grads, variables)))

    def call(self, way, fault):
        coefs = self.coefs(fault)
        place = self.program["place"]
        if self.session:
            if way not in self.function:
                places = [tf1.placeholder(tf.float32, coef.shape) for coef in coefs]
                self.function[way] = places, self.step(way, *places)
            places, op = self.function[way]
            self.run([] if op is None else op, dict(zip(places, coefs)))
            return op
        if way not in self.function:
            self.build()  # As users do, so that variables are made outside of functions.

            def step(*coefs):
                with self.slow.building():
                    result = self.step(way, *coefs)
                return None if place in ("function", "jit") else result

            if place == "function":
                step = tf.function(step, autograph=False)
            elif place == "jit":
                step = modes.compiled(step)
            self.function[way] = step
        step = self.function[way]
        coefs = [tf.constant(coef) for coef in coefs]
        if self.strategy:
            return replicas.run(self.strategy, step, coefs)
        return step(*coefs)

    def build(self):
        """Has the optimizer make its variables, where that is a method and once."""
        if hasattr(self.optimizer, "build") and not getattr(self.optimizer, "built", self.built):
            self.optimizer.build(self.variables)
        self.built = True

    def do_step(self, way, fault):
        result = self.call(way, fault)
        return {} if self.strategy else {"returned": history.kind(result)}

    def do_fit(self, batches):
        self.steps += 1
        random = np.random.RandomState(self.steps)
        x = random.randint(0, 4, [2 * len(batches), 3])
        y = random.uniform(-1, 1, [2 * len(batches), 1]).astype(np.float32)
        for i, fault in enumerate(batches):
            if fault is not None:
                y[2 * i + fault[2] % 2] = FAULTS[fault[0]]
        options = (
            {}
            if keras_homes.VERSION < (2, 0)
            else {"run_eagerly": self.program["place"] == "eager"}
        )
        if self.function.get("fit") is None:
            self.model.compile(self.optimizer, "mse", **options)
            self.function["fit"] = True
        history_ = self.model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        return {"value": [float(v) for v in history_.history["loss"]]}

    def do_read(self):
        if self.session:  # As a loop does that prints the scale.
            scale = self.optimizer.loss_scale
            return {"values": [self.run(scale) for _ in range(2)]}
        return {}

    def do_finalize(self):
        tf1.get_default_graph().finalize()
        return {}

    def do_rate(self, value):
        self.optimizer.learning_rate = value
        return {}

    def do_weights(self):
        optimizer = self.optimizer
        if not hasattr(optimizer, "get_weights"):
            return {}
        weights = optimizer.get_weights()
        optimizer.set_weights(weights)
        return {"values": [np.asarray(weight) for weight in weights]}

    def do_config(self):
        config = self.optimizer.get_config()
        optimizer = type(self.optimizer).from_config(copy.deepcopy(config))
        return {"config": plain({**config, "again": optimizer.get_config()})}

    def save(self, how, folder):
        path = os.path.join(folder, "x.weights.h5" if how == "file" else "x")
        if how == "file":
            self.model.compile(self.optimizer, "mse")
            self.model.save_weights(path)
            return path
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer).save(path)

    def restore(self, how, path):
        self.build()
        if how == "file":
            self.model.compile(self.optimizer, "mse")
            self.model.load_weights(path)
        else:
            tf.train.Checkpoint(model=self.model, optimizer=self.optimizer).restore(path)

    def through(self, how):
        """Saved, restored into the original, trained, saved, restored into this class again."""
        side = self
        for library in ("original", self.library):
            path = side.save(how, tempfile.mkdtemp())
            side, steps = Side(self.program, library), side.steps
            side.restore(how, path)
            side.steps = steps
            if side.home.kind == "v2":  # Slots are restored as they are made.
                side.call("minimize", None)
        self.__dict__.update(side.__dict__)
        return {}

    def do_checkpoint(self):
        return self.through("checkpoint")

    def do_file(self):
        self.build()
        return self.through("file")

    def do_threads(self, way, finite):
        self.call(way, None)
        self.call(way, None)
        self.slow.seconds = 0.003
        at_once(10, self.call, (way, None), None if finite else (way, ["nan", 0, 0, 0]))
        self.slow.seconds = 0.0
        # Keras 3's own counter loses counts itself: it adds to what it has read.
        keys = ("loss_scale", "dynamic_scale", *(["dynamic_counter"] if finite else []))
        return {key: value for key, value in self.attributes().items() if key in keys}


def tail(variable):
    """The end of a variable's name, without what makes it unique in the process."""
    name = getattr(variable, "path", None) or variable.name
    return name.split(":")[0].rsplit("/", 1)[-1].rstrip("_0123456789")


def plain(value):
    """A config without the names of classes' homes, which differ on purpose."""
    if isinstance(value, dict):
        return {
            str(k): plain(v)
            for k, v in sorted(value.items())
            if k not in ("module", "registered_name", "name")
        }
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


@contextlib.contextmanager
def side(program, library):
    home = HOMES[program["family"].split()[0]]
    home.clear_session()
    with contextlib.ExitStack() as stack:
        if program["place"] == "graph":
            stack.enter_context(tf.Graph().as_default())
            session = stack.enter_context(tf1.Session())
            tf1.keras.backend.set_session(session)
        else:
            stack.enter_context(modes.eager_mode())
            if program["noise"]:
                tf1.set_random_seed(3)
        yield Side(program, library)
