"""Interprets programs with Keras' wrappers, for one of the two libraries."""

import contextlib
import copy
import os
import tempfile

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes, originals, replicas
from tests.differential import history
from tests.differential.eager_side import branching
from tests.differential.v1_side import FAULTS, Slow
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


class Side:
    """A model with three variables, an embedding's among them, and its optimizer."""

    def __init__(self, program, library):
        self.program, self.library = program, library
        name, self.api = program["family"].split()
        self.home = HOMES[name]
        self.steps, self.function, self.session, self.strategy = 0, {}, None, None
        if program["place"] == "mirrored":
            self.strategy = replicas.strategy("mirrored_2")
        self.built, self.slow = False, Slow(program)
        if program["place"] == "graph":
            self.session = modes.Session(tf1.keras.backend.get_session())
        self.loaded = False
        self.kinds = {}  # Of the gradients that a way unscales by itself.
        # An optimizer by itself, which a loss scale that changes nothing is compared with.
        self.alone = bool(program.get("alone")) and library == "original"
        # Then nothing is rounded, and float16 does not overflow.
        self.exact = program.get("alone") == "fixed"
        with self.scope():
            if program.get("variables"):
                random, self.model = np.random.RandomState(7), None
                self.variables = [self.variable(spec, random) for spec in program["variables"]]
            else:
                self.make()
            self.optimizer = self.make_optimizer()

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def variable(self, spec, random):
        shape = [4, 2] if spec["kind"] == "rows" else spec["shape"]
        value = random.uniform(-1, 1, shape).astype(spec["dtype"])
        if self.home.kind == "keras3":
            return self.home.keras.Variable(value, dtype=spec["dtype"])
        if self.session:
            return tf1.Variable(value, use_resource=True)
        return tf.Variable(value)

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

    def make_optimizer(self):
        name, options = self.program["optimizer"]
        options = dict(options)
        if options["learning_rate"] == "schedule":
            schedules = self.home.keras.optimizers.schedules
            options["learning_rate"] = schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.25, 0.125])
        inner = getattr(self.home.optimizers, name)(**options)
        if self.alone:
            return inner
        optimizer = self.wrapped(
            inner, self.library == "package", self.program.get("multiplier", 2)
        )
        made, copies = self.program.get("made"), []
        if self.library == "package":  # What comes out is to be what went in.
            if made == "config":
                copies = [type(optimizer).from_config(optimizer.get_config())]
            elif made:
                copies = keras_homes.copies(optimizer)
        return copies[-1] if copies else optimizer

    def wrapped(self, inner, package, multiplier):
        dynamic, start, growth = self.program["scale"]
        cls, home = self.home.own(self.api), originals.experimental()
        if package:
            home, namespace = experimental, mixed_precision
            if self.api == "experimental":
                namespace = mixed_precision.experimental
            cls = namespace.LossScaleOptimizer
        if self.api == "experimental":
            return cls(inner, home.DynamicLossScale(start, growth) if dynamic else start)
        options = {"initial_scale": start}
        if dynamic:
            options["dynamic_growth_steps"] = growth
        elif self.home.kind != "keras3":
            options["dynamic"] = False
        if not package:
            optimizer = cls(inner, **options)
            if multiplier != 2:  # Which its arguments do not say.
                optimizer._loss_scale._multiplier = multiplier
            return optimizer
        if multiplier != 2:
            options = {"loss_scale": experimental.DynamicLossScale(start, growth, multiplier)}
        elif self.exact:
            options = {"loss_scale": start}
        if self.program.get("count_skipped") is not None:
            options["count_skipped"] = self.program["count_skipped"]
        return cls(inner, **options)

    @property
    def inner(self):
        if self.alone:
            return self.optimizer
        return getattr(self.optimizer, "inner_optimizer", None) or self.optimizer._optimizer

    def value(self, variable):
        if self.session:
            return self.session.run(variable)
        if self.strategy:
            variable = getattr(variable, "_value", variable)  # Of Keras 3's.
            return [copy.numpy() for copy in replicas.copies(self.strategy, variable)]
        return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable)

    def do(self, action):
        with self.scope():
            graph = tf1.get_default_graph() if self.session else None
            before = len(graph.get_operations()) if self.session else 0
            seen = getattr(self, "do_" + action[0])(*action[1:]) or {}
            if self.session:
                seen["operations"] = len(graph.get_operations()) - before
            if action[0] != "threads":
                seen.update(self.state())
        return seen

    def state(self):
        weights = self.model.weights if self.model else self.variables
        state = {f"weight {i}": self.value(v) for i, v in enumerate(weights)}
        if self.home.kind == "v2":
            variables = self.inner.weights
        else:
            variables = self.home.variables(self.inner)
        # A model that is loaded may have other names.
        names = ["" if self.loaded else tail(variable) for variable in variables]
        state["names"] = list(names)
        other = self.program.get("alone") or self.loaded
        if self.home.kind == "keras3" and self.optimizer.built and not other:
            state["names"] += [tail(variable) for variable in self.optimizer.variables]
        pairs = zip(names, variables)
        state.update({f"inner {i} {n}": self.value(v) for i, (n, v) in enumerate(pairs)})
        if not self.session:
            state.update(self.attributes())
        return state

    def attributes(self):
        found = {}
        names = ATTRIBUTES[self.home.kind] if self.api == "stable" else ("loss_scale",)
        late = self.home.kind == "keras3" and not self.optimizer.built
        if late or self.program.get("alone"):  # Its own class makes its variables later.
            names = ()
        # These compute the rate of a schedule in steps alone, not as a model is loaded.
        stale = self.loaded and self.home.kind == "current"
        for name in (*names, "iterations", *([] if stale else ["learning_rate"])):
            value = getattr(self.optimizer, name, None)
            if name == "loss_scale" and callable(value):
                value = value()
            if isinstance(value, (tf.Tensor, tf.Variable)) or hasattr(value, "numpy"):
                value = np.ravel(self.value(value))[0]  # Objects and tensors stand for a number.
            if value is None or isinstance(value, (bool, int, float, np.generic)):
                found[name] = value if value is None else float(value)
        return found

    def coefs(self, fault):
        self.steps += 1
        arrays = []
        for replica in range(2 if self.strategy else 1):
            random = np.random.RandomState(self.steps + 500 * replica)
            made = [random.uniform(-1, 1, v.shape).astype(np.float32) for v in self.variables]
            if fault is not None and fault[3] == replica:
                array = made[fault[1] % len(made)]
                if array.size:
                    array.flat[fault[2] % array.size] = FAULTS[fault[0]]
            if self.exact:
                made = [np.round(8 * array) / 8 for array in made]
            arrays.append([np.asarray(array, np.float32) for array in made])
            arrays[-1].append(np.int32([0, self.steps % 4, 0]))  # The rows that are looked up.
        return [np.stack(each) for each in zip(*arrays)]

    def kind(self, index):
        specs = self.program.get("variables")
        return specs[index]["kind"] if specs else "rows" if index == 0 else "dense"

    def loss(self, coefs, first):
        *coefs, indices = coefs
        terms = []
        for i, (variable, coef) in enumerate(zip(self.variables, coefs)):
            if first and self.kind(i) == "late":
                continue
            value = tf.convert_to_tensor(variable)
            if self.kind(i) == "rows":
                value, coef = tf.gather(variable, indices), tf.gather(coef, indices)
            if value.dtype == tf.float16:
                value = tf.cast(value, tf.float32)
            term = value * tf.cast(coef, value.dtype)
            term = term * 2.0**-20 if self.exact else term + 0.25 * value * value
            terms.append(tf.cast(tf.reduce_sum(term), tf.float32))
        return tf.add_n(terms)

    def step(self, way, first, *coefs):
        """A training step of one's own; one that this Keras does not have says the same."""
        if self.strategy:
            coefs = [tf.gather(coef, replicas.replica_id()) for coef in coefs]
        else:
            coefs = [coef[0] for coef in coefs]
        opt, variables = self.optimizer, self.variables
        if way == "minimize" and not hasattr(opt, "minimize"):
            way = "scale_loss"
        if way == "minimize":
            return opt.minimize(lambda: self.loss(coefs, first), variables)
        legacy = way in ("get_scaled_loss", "clipped")
        scale, unscale = tf.identity, None
        if legacy and hasattr(opt, "get_scaled_loss"):
            scale, unscale = opt.get_scaled_loss, opt.get_unscaled_gradients
        elif way != "applied_alone" and not self.alone:
            scale = opt.scale_loss
        if self.session:
            grads = tf1.gradients(scale(self.loss(coefs, first)), variables)
        else:
            with tf.GradientTape() as tape:
                loss = scale(self.loss(coefs, first))
            grads = tape.gradient(loss, variables)
        if unscale:
            grads = unscale(grads)
        if legacy:
            self.kinds[way] = [history.kind(grad) for grad in grads]
        if way in ("clipped", "clipped_after"):
            grads = clipped(grads)
        if way == "apply" and hasattr(opt, "apply"):
            return opt.apply(grads, variables)
        return opt.apply_gradients(list(zip(grads, variables)))

    def call(self, way, fault):
        counted = self.program.get("count_skipped")
        if counted is None:
            return self.called(way, fault)
        before = int(self.value(self.inner.iterations))  # Of both, as it makes a variable.
        scale = self.scale_now()
        result = self.called(way, fault)
        by_hand = self.library == "original" and self.program["scale"][0]  # It knows its way alone.
        if by_hand and (fault or self.scale_now() < scale):  # Float16 may overflow by itself.
            self.inner.iterations.assign(before + counted)
        return result

    def called(self, way, fault):
        coefs = self.coefs(fault)
        place = self.program["place"]
        if self.session:
            if way not in self.function:
                places = [tf1.placeholder(coef.dtype, coef.shape) for coef in coefs]
                self.function[way] = places, self.step(way, False, *places)
            places, op = self.function[way]
            self.session.run([] if op is None else op, dict(zip(places, coefs)))
            return op
        first = self.steps == 1
        way = way, first and "late" in map(self.kind, range(len(self.variables)))
        if way not in self.function:
            if place in ("function", "jit") or way[0] == "clipped":
                self.build()  # As users do, so that variables are made outside of functions.

            def step(*coefs):
                with self.slow.building():
                    result = self.step(*way, *coefs)
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
        optimizer = self.optimizer
        if self.library == "original" and self.home.name == "current":
            optimizer = self.inner  # That of 2.10 has the method of an optimizer without a wrapper.
        if hasattr(optimizer, "build") and not getattr(optimizer, "built", self.built):
            optimizer.build(self.variables)
        self.built = True

    def do_step(self, way, fault):
        result = self.call(way, fault)
        if self.strategy:
            return {}
        returned = None if self.program.get("alone") else history.kind(result)
        if self.home.kind == "keras3" and hasattr(result, "dtype"):  # Its count, in some form.
            returned = "number"
        return {"returned": returned, "kept": self.kinds.get(way)}

    def scale_now(self):
        found = self.attributes()
        return found.get("dynamic_scale", found.get("loss_scale", 0.0))

    def do_many(self, way, faults):
        """Some steps, and the state of the loss scale after each."""
        seen = []
        for fault in faults:
            self.do_step(way, fault and [fault, 0, 0, 0])
            seen.append(self.attributes())
        return {"scales": seen}

    def do_attribute(self, pair):
        """A number of the loss scale is set by hand, where that can be."""
        try:
            setattr(self.optimizer, *pair)
        except Exception as error:
            return {"returned": type(error).__name__}

    def do_branching(self):
        self.build()
        if self.program.get("count_skipped") is not None:
            return  # The side of the original counts in `call` alone.
        branching(self.optimizer, self.variables[0], self.library)

    def do_model_file(self, ending):
        """What is loaded is to be what was saved: the original goes on with what it has."""
        self.call("minimize", None)
        self.function, self.loaded = {}, True
        self.model.compile(self.optimizer, "mse")
        path = os.path.join(tempfile.mkdtemp(), "model" + ending)
        self.model.save(path)
        loaded = self.home.keras.models.load_model(path)
        if self.library == "package":
            self.model = loaded
            self.variables = list(self.model.trainable_variables)
            self.optimizer = self.model.optimizer

    def do_fit(self, batches):
        self.steps += 1
        random = np.random.RandomState(self.steps)
        x = random.randint(0, 4, [2 * len(batches), 3])
        y = random.uniform(-1, 1, [2 * len(batches), 1]).astype(np.float32)
        for i, fault in enumerate(batches):
            if fault is not None:
                y[2 * i + fault[2] % 2] = FAULTS[fault[0]]
        options = {"run_eagerly": self.program["place"] == "eager"}
        if self.function.get("fit") is None:
            self.model.compile(self.optimizer, "mse", **options)
            self.function["fit"] = True
        history_ = self.model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        return {"value": [float(v) for v in history_.history["loss"]]}

    def do_read(self):
        if not self.session:
            return {}
        scale = self.optimizer.loss_scale
        return {
            "values": [self.session.run(scale) for _ in range(2)]
        }  # As a loop does that prints it.

    def do_finalize(self):
        tf1.get_default_graph().finalize()

    def do_rate(self, value):
        self.optimizer.learning_rate = value

    def do_weights(self):
        optimizer = self.optimizer
        weights = optimizer.get_weights() if hasattr(optimizer, "get_weights") else []
        if weights:
            optimizer.set_weights(weights)
        return {"values": [np.asarray(weight) for weight in weights]}

    def do_config(self):
        config = self.optimizer.get_config()
        optimizer = type(self.optimizer).from_config(copy.deepcopy(config))
        return {"config": plain({**config, "again": optimizer.get_config()})}

    def checkpoint(self):
        variables = self.variables
        if self.home.kind == "keras3":
            variables = [variable.value for variable in variables]
        model = self.model or tf.train.Checkpoint(v=variables)
        return tf.train.Checkpoint(model=model, optimizer=self.optimizer)

    def save(self, how, folder):
        self.build()
        path = os.path.join(folder, "x.weights.h5" if how == "file" else "x")
        if how == "checkpoint":
            return self.checkpoint().save(path)
        self.model.compile(self.optimizer, "mse")
        self.model.save_weights(path)
        return path

    def restore(self, how, path):
        self.build()
        if how == "checkpoint":
            self.checkpoint().restore(path)
        else:
            self.model.compile(self.optimizer, "mse")
            self.model.load_weights(path)

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

    def do_checkpoint(self):
        return self.through("checkpoint")

    def do_file(self):
        return self.through("file")

    def do_threads(self, way, finite):
        self.call(way, None)
        self.call(way, None)
        self.slow.seconds = 0.003
        modes.at_once(10, self.call, (way, None), None if finite else (way, ["nan", 0, 0, 0]))
        self.slow.seconds = 0.0
        # Keras 3's own counter loses counts itself: it adds to what it has read.
        keys = ("loss_scale", "dynamic_scale", *(["dynamic_counter"] if finite else []))
        return {key: value for key, value in self.attributes().items() if key in keys}


def clipped(grads):
    """By the norm of all, or where their dtypes differ by the norm of each."""
    if len({grad.dtype for grad in grads if grad is not None}) < 2:
        return tf.clip_by_global_norm(grads, 0.5)[0]
    return [None if grad is None else tf.clip_by_norm(grad, 0.5) for grad in grads]


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
