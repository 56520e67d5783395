"""Interprets programs with v1 optimizers, managers and loss scales, for one library."""

import contextlib
import operator
import time
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops

from tests import modes, originals
from tests.differential import history, models
from tf_lossscale_compat.contrib import mixed_precision as package_contrib
from tf_lossscale_compat.train import experimental as package_experimental

tf1 = tf.compat.v1

LIBRARIES = {
    "original": (originals.contrib(), originals.experimental()),
    "package": (package_contrib, package_experimental),
}
CLASSES = {
    "exponential": "ExponentialUpdateLossScaleManager",
    "dynamic": "DynamicLossScale",
}
FAULTS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 3e38, "half": 2e38, "large": 1e25}


class AdamWeightDecayOptimizer(tf1.train.Optimizer):
    """In the shape of NVIDIA's, for BERT: makes moments as it applies, and counts no steps."""

    def __init__(self, rate, decay):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.rate, self.decay = rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, var in grads_and_vars:
            if grad is None:
                continue
            grad = tf.convert_to_tensor(grad)
            m, v = (
                tf1.get_variable(
                    f"{var.op.name}/{moment}",
                    shape=var.shape.as_list(),
                    dtype=var.dtype.base_dtype,
                    trainable=False,
                    initializer=tf1.zeros_initializer(),
                )
                for moment in ("adam_m", "adam_v")
            )
            next_m, next_v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * tf.square(grad)
            update = next_m / (tf.sqrt(next_v) + 1e-3) + self.decay * var
            moved = var - tf.cast(self.rate, update.dtype) * update
            assignments += [tf1.assign(var, moved), tf1.assign(m, next_m), tf1.assign(v, next_v)]
        return tf.group(*assignments, name=name)


V1_OPTIMIZERS = {
    "sgd": lambda rate, option: tf1.train.GradientDescentOptimizer(rate, use_locking=option),
    "momentum": lambda rate, option: tf1.train.MomentumOptimizer(rate, 0.9, use_nesterov=option),
    "adam": lambda rate, option: tf1.train.AdamOptimizer(rate, epsilon=1e-3 if option else 1e-8),
    "rmsprop": lambda rate, option: tf1.train.RMSPropOptimizer(rate, centered=option),
    "adagrad": lambda rate, option: tf1.train.AdagradOptimizer(rate),
    "ftrl": lambda rate, option: tf1.train.FtrlOptimizer(
        rate, l2_regularization_strength=0.5 if option else 0.0
    ),
    "adadelta": lambda rate, option: tf1.train.AdadeltaOptimizer(rate),
    # In graphs alone, where `get_variable` keeps what it makes.
    "of BERT": lambda rate, option: AdamWeightDecayOptimizer(rate, 0.01 if option else 0.0),
}
CLIPS = {
    "norm": lambda grads: [None if g is None else tf.clip_by_norm(g, 0.5) for g in grads],
    "global_norm": lambda grads: tf.clip_by_global_norm(grads, 0.5)[0],
    "value": lambda grads: [None if g is None else tf.clip_by_value(g, -0.25, 0.25) for g in grads],
}
ARITHMETIC = ("truediv", "add", "sub", "mul", "floordiv", "mod", "pow", "lt", "ge")


class Slow:
    """Has values come late that graphs assign, so that steps that are taken at once overlap.

    A value that was computed from what a variable held is then assigned when the other step may
    have changed it. `assign_add` is not late: it reads as it writes.
    """

    def __init__(self, program):
        self.wanted = any(action[0] in ("threads", "both") for action in program["actions"])
        self.late = self.wanted and program["place"] != "eager"  # Where threads overlap anyway.
        self.seconds = 0.0

    def _delayed(self, assign):
        def assign_late(*args, **kwargs):
            if not tf.executing_eagerly() and len(args) > 1:  # Not as raw operations are called.
                target, value, *args = args
                if not isinstance(value, tf.Tensor):  # Of a reference variable.
                    value = tf.convert_to_tensor(value, target.dtype.base_dtype)
                late = tf.numpy_function(self._wait, [value], value.dtype)
                late.set_shape(value.shape)
                args = [target, late, *args]
            return assign(*args, **kwargs)

        return assign_late

    def _wait(self, value):
        time.sleep(self.seconds)
        return value

    @contextlib.contextmanager
    def building(self):
        """Context in which a step is built."""
        with contextlib.ExitStack() as stack:
            if self.late:
                for module, name in (
                    (gen_resource_variable_ops, "assign_variable_op"),
                    (gen_state_ops, "assign"),
                ):
                    late = self._delayed(getattr(module, name))
                    stack.enter_context(mock.patch.object(module, name, late))
            yield


def shape_of(spec):
    """The shape of a variable; rows can be looked up in a matrix alone."""
    return [3, 2] if spec["kind"] == "rows" else spec["shape"]


def elements(spec):
    """How many elements the gradient of a variable has."""
    return 0 if spec["kind"] in ("frozen", "unused") else int(np.prod(shape_of(spec)))


def coefficients(program, index, step, fault):
    """The arrays that a step's gradients are made of, with what is wrong with them.

    The last holds the rows that are looked up, one of them twice.
    """
    random, specs = np.random.RandomState(step), program["variables"][index]
    arrays = [random.uniform(-1, 1, shape_of(spec)).astype(np.float32) for spec in specs]
    if fault is not None:
        name, variable, element = fault[:3]
        array = arrays[variable % len(arrays)]
        if array.size:
            array.flat[element % array.size] = FAULTS[name]
    rows = np.int32([0, step % 3, 0])
    return [np.asarray(array, np.float32) for array in arrays] + [rows]


def over(grad, scale):
    """A gradient, dense or sparse, divided by the scale."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(over(grad.values, scale), grad.indices, grad.dense_shape)
    return grad / tf.cast(scale, grad.dtype)


class Side:
    """What graphs and eager mode have in common."""

    def __init__(self, program, library):
        self.program, self.library = program, library
        contrib, experimental = LIBRARIES[library]
        family = program["family"]
        self.of_contrib = family in ("contrib", "managers", "modelled")
        self.home = contrib if self.of_contrib else experimental
        if family == "modelled" and library == "original":
            self.home = models
        self.wrapped = family in ("contrib", "mixed", "modelled")
        self.scales, self.optimizers, self.inner = [], {}, {}
        self.variables, self.global_step = None, None
        self.taken, self.steps, self.slow = [], 0, Slow(program)
        self.chosen = True  # If a step inside of a conditional is taken.

    def do(self, action):
        """Takes an action of the program; returns {key: what is observed}."""
        return getattr(self, "do_" + action[0])(*action[1:]) or {}

    def scale(self, index=0):
        """The loss scale of an optimizer; all are made at the first call."""
        name, arguments = self.program["scale"]
        if not self.scales:
            fixed = "FixedLossScaleManager" if self.of_contrib else "FixedLossScale"
            home, beyond = self.home, self.program.get("beyond") or {}
            if beyond and self.library == "original":
                home = models
            cls = getattr(home, CLASSES.get(name, fixed))
            count = 1 if self.program["shared"] else len(self.program["optimizers"])
            # A fixed manager of this package works in any graph, of whichever it is.
            elsewhere = self.program.get("elsewhere") and self.library == "package"
            with tf.Graph().as_default() if elsewhere else contextlib.nullcontext():
                self.scales = [cls(*arguments, **beyond) for _ in range(count)]
            if elsewhere:
                for index in range(count):
                    self.read(index)
        return self.scales[index % len(self.scales)]

    def read(self, index=0):
        scale = self.scale(index)
        return scale.get_loss_scale() if self.of_contrib else scale()

    def optimizer(self, index):
        if index not in self.optimizers:
            options = self.program["optimizers"][index]
            rate = options["rate"]
            if rate == "decay":
                self.network()
                rate = tf1.train.exponential_decay(0.5, self.global_step, 1, 0.5)
            inner = V1_OPTIMIZERS[options["kind"]](rate, options["option"])
            name = "LossScaleOptimizer" if self.of_contrib else "MixedPrecisionLossScaleOptimizer"
            self.optimizers[index] = getattr(self.home, name)(inner, self.scale(index))
            self.inner[index] = inner
        return self.optimizers[index]

    def network(self):
        """Makes the variables, those of each optimizer, and the global step."""
        if self.variables is None:
            random = np.random.RandomState(7)
            self.variables = [
                [self.variable(f"v{i}_{j}", spec, random) for j, spec in enumerate(specs)]
                for i, specs in enumerate(self.program["variables"])
            ]
            self.global_step = self.make_global_step()
        return self.variables

    def trained(self, index):
        """The variables that an optimizer is given, with their specs."""
        pairs = zip(self.network()[index], self.program["variables"][index])
        return [var for var, spec in pairs if spec["kind"] != "frozen"]

    def loss(self, index, coefs):
        self.count_operations()
        terms, (*coefs, indices) = [tf.zeros([])], coefs
        for var, spec, coef in zip(self.network()[index], self.program["variables"][index], coefs):
            if spec["kind"] == "unused":
                continue
            if spec["kind"] == "rows":
                value, coef = tf.gather(var, indices), tf.gather(coef, indices)
            else:
                value = tf.convert_to_tensor(var)
            value = tf.cast(value, tf.float32)
            if self.program["noise"]:
                coef *= tf.random.uniform([])
            terms.append(tf.reduce_sum(value * coef + 0.25 * value * value))
        return tf.add_n(terms)

    def count_operations(self):
        """Before the network, whose random operations are seeded by this number."""

    def gradients(self, index, loss):
        options, given = self.program["optimizers"][index], self.grad_loss(index)
        pairs = self.optimizer(index).compute_gradients(loss, var_list=self.trained(index), **given)
        grads = [grad for grad, _ in pairs]
        if options["clip"]:
            grads = CLIPS[options["clip"]](grads)
        return grads, [var for _, var in pairs]

    def grad_loss(self, index):
        value = self.program["optimizers"][index].get("grad_loss")
        return {"grad_loss": tf.constant(value)} if value else {}

    def step(self, index, coefs):
        """One step; returns what is returned."""
        self.network()
        with self.slow.building():
            return self.build_step(index, coefs)

    def build_step(self, index, coefs):
        if not self.wrapped:
            return self.bare_step(index, coefs)
        options = self.program["optimizers"][index]
        given = {"name": options["name"]}
        if options["global_step"]:
            given["global_step"] = self.global_step
        loss = self.loss_as_given(lambda: self.loss(index, coefs))
        if options["way"] == "minimize":
            given.update(self.grad_loss(index))
            return self.optimizer(index).minimize(loss, var_list=self.trained(index), **given)
        grads, variables = self.gradients(index, loss)
        return self.optimizer(index).apply_gradients(list(zip(grads, variables)), **given)

    def step_inside(self, index, coefs):
        """A step, maybe in a conditional or a loop; what to run, and what was returned."""
        inside, returned = self.program["inside"], []

        def build():
            made = self.step(index, coefs)
            returned.append(made)
            return [m for m in tf.nest.flatten(made) if isinstance(m, (tf.Operation, tf.Tensor))]

        def chained(value):
            with tf.control_dependencies(build()):
                return tf.identity(value)

        if inside == "cond":
            ops = [tf.cond(self.chosen, lambda: chained(1), lambda: tf.constant(0))]
        elif inside == "while":
            ops = [tf.while_loop(lambda i: i < 2, lambda i: chained(i + 1), [tf.constant(0)])]
        else:
            ops = build()
        return ops, returned[-1]

    def bare_step(self, index, coefs):
        """A step with a loss scale and no optimizer; returns what `update` does, and the flag."""
        scale, value = self.scale(index), self.read(index)
        variables = self.trained(index)
        if self.in_session():
            grads = tf1.gradients(self.loss(index, coefs) * value, variables)
        else:
            with tf.GradientTape() as tape:
                loss = self.loss(index, coefs) * value
            grads = tape.gradient(loss, variables)
        grads = [over(grad, value) for grad in grads if grad is not None]
        if self.of_contrib:
            tests = [tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g in grads]
            flag = tf.reduce_all(tests + [True])
            return scale.update_loss_scale(flag), flag
        return scale.update(grads)

    def state_variables(self):
        names = ("_loss_scale", "_current_loss_scale", "_num_good_steps", "_num_bad_steps")
        pairs = [(n, i, getattr(s, n, None)) for i, s in enumerate(self.scales) for n in names]
        return {f"{name} {i}": v for name, i, v in pairs if isinstance(v, tf.Variable)}

    def do_scale(self):
        return {"returned": history.kind(self.scale() and None)}

    def do_ask(self):
        """Asks the wrapper for what it has."""
        self.network()
        optimizer = self.optimizer(0)
        slots, count = sorted(optimizer.get_slot_names()), len(optimizer.variables())
        return {"name": optimizer.get_name(), "slots": slots, "variables": count}

    def do_count(self, value):
        for name, variable in self.state_variables().items():
            if "steps" in name:
                self.assign(variable, value)

    def counted(self, finite):
        """What steps that ran at once have left, as far as no order changes it."""
        wanted = ("_num_good_steps", "loss_scale") if finite else ("loss_scale",)
        found = self.state_variables().items()
        state = {name: self.value(v) for name, v in found if name.split()[0].endswith(wanted)}
        self.do_count(0)
        return state

    def do_set(self, value):
        for name, variable in self.state_variables().items():
            if "steps" not in name:
                self.assign(variable, np.float32(value))

    def do_many(self, index, faults):
        """Some steps, and the state of the loss scale after each."""
        seen = []
        for fault in faults:
            self.do_step(index, fault and [fault, 0, 0, 0])
            seen.append([self.value(v) for v in self.state_variables().values()])
        return {"scales": seen}

    def do_arithmetic(self, number):
        """Of a loss scale, which is one of a number: r2.0's own is called for it."""
        scale, seen = self.scale(), {}
        scale = scale() if self.library == "original" else scale
        for name in ARITHMETIC:
            for pair in ((number, scale), (scale, number)):
                result = getattr(operator, name)(*pair)
                seen.setdefault(name, []).append([history.kind(result), result.numpy()])
        return {"values": seen}

    def do_rewrite(self, optimizer, scale):
        """The graph rewrite is enabled, looked at, and disabled."""
        inner, seen = tf1.train.GradientDescentOptimizer(0.5), []
        if optimizer == "wrapped":
            inner = self.home.MixedPrecisionLossScaleOptimizer(inner, 8.0)
        try:
            made = self.home.enable_mixed_precision_graph_rewrite(inner, scale)
            seen.append(type(made).__name__)
        except (TypeError, ValueError):
            seen.append("refused")
        options = tf.config.optimizer.get_experimental_options
        seen.append(bool(options().get("auto_mixed_precision")))
        self.home.disable_mixed_precision_graph_rewrite()
        return {"values": [*seen, bool(options().get("auto_mixed_precision"))]}

    def do_threads(self, index, finite):
        """Some threads take finite steps at once; unless `finite`, this one takes others too."""
        self.call(index, None)
        self.do_count(0)
        self.slow.seconds = 0.003
        calls = 30 if self.program["place"] == "eager" else 10
        faulty = None if finite else (index, ["nan", 0, 0, 0])
        modes.at_once(calls, self.call, (index, None), faulty)
        self.slow.seconds = 0.0
        return self.counted(finite)
