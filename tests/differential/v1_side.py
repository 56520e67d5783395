"""Interprets programs with v1 optimizers, managers and loss scales, for one library."""

import contextlib
import os
import re
import tempfile
import threading

import numpy as np
import tensorflow as tf

from tests import modes, originals
from tests.differential import history
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
FAULTS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 3e38, "large": 1e25}
# Of the runs of train ops at once, and of the calls of each of some threads.
RUNS, THREADS, CALLS = 8, 4, 30
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
}
CLIPS = {
    "norm": lambda grads: [None if g is None else tf.clip_by_norm(g, 0.5) for g in grads],
    "global_norm": lambda grads: tf.clip_by_global_norm(grads, 0.5)[0],
    "value": lambda grads: [None if g is None else tf.clip_by_value(g, -0.25, 0.25) for g in grads],
}


def shape_of(spec):
    """The shape of a variable; rows can be looked up in a matrix alone."""
    return [3, 2] if spec["kind"] == "rows" else spec["shape"]


def coefficients(specs, step, fault):
    """The arrays that a step's gradients are made of, with what is wrong with them."""
    random = np.random.RandomState(step)
    arrays = [random.uniform(-1, 1, shape_of(spec)).astype(np.float32) for spec in specs]
    if fault is not None:
        name, variable, element = fault[:3]
        array = arrays[variable % len(arrays)]
        if array.size:
            array.flat[element % array.size] = FAULTS[name]
    return [np.asarray(array) for array in arrays]


class Side:
    """What graphs and eager mode have in common."""

    def __init__(self, program, library):
        self.program, self.library = program, library
        contrib, experimental = LIBRARIES[library]
        self.of_contrib = program["family"] in ("contrib", "managers")
        self.home = contrib if self.of_contrib else experimental
        self.wrapped = program["family"] in ("contrib", "mixed")
        self.scales, self.optimizers, self.inner = [], {}, {}
        self.variables, self.global_step = None, None
        self.taken, self.steps = [], 0

    def do(self, action):
        """Takes an action of the program; returns {key: what is observed}."""
        return getattr(self, "do_" + action[0])(*action[1:])

    def scale(self, index=0):
        """The loss scale of an optimizer; all are made at the first call."""
        name, arguments = self.program["scale"]
        if not self.scales:
            fixed = "FixedLossScaleManager" if self.of_contrib else "FixedLossScale"
            cls = getattr(self.home, CLASSES.get(name, fixed))
            count = 1 if self.program["shared"] else len(self.program["optimizers"])
            self.scales = [cls(*arguments) for _ in range(count)]
        return self.scales[index % len(self.scales)]

    def read(self, index=0):
        scale = self.scale(index)
        return scale.get_loss_scale() if self.of_contrib else scale()

    def optimizer(self, index):
        if index not in self.optimizers:
            options = self.program["optimizers"][index]
            inner = V1_OPTIMIZERS[options["kind"]](options["rate"], options["option"])
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
        terms = [tf.zeros([])]
        for var, spec, coef in zip(self.network()[index], self.program["variables"][index], coefs):
            if spec["kind"] == "unused":
                continue
            if spec["kind"] == "rows":  # One of them twice.
                indices = tf.constant([0, 2, 0])
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
        options = self.program["optimizers"][index]
        pairs = self.optimizer(index).compute_gradients(loss, var_list=self.trained(index))
        grads = [grad for grad, _ in pairs]
        if options["clip"]:
            grads = CLIPS[options["clip"]](grads)
        return grads, [var for _, var in pairs]

    def step(self, index, coefs):
        """One step; returns what is returned."""
        self.network()
        if not self.wrapped:
            return self.bare_step(index, coefs)
        options = self.program["optimizers"][index]
        given = {"name": options["name"]}
        if options["global_step"]:
            given["global_step"] = self.global_step
        loss = self.loss_as_given(lambda: self.loss(index, coefs))
        if options["way"] == "minimize":
            return self.optimizer(index).minimize(loss, var_list=self.trained(index), **given)
        grads, variables = self.gradients(index, loss)
        return self.optimizer(index).apply_gradients(list(zip(grads, variables)), **given)

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
        grads = [g / tf.cast(value, g.dtype) for g in grads if isinstance(g, tf.Tensor)]
        if self.of_contrib:
            tests = [tf.reduce_all(tf.math.is_finite(g)) for g in grads]
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
        return {
            "name": optimizer.get_name(),
            "slots": sorted(optimizer.get_slot_names()),
            "variables": len(optimizer.variables()),
        }

    def set_counters(self, value):
        for name, variable in self.state_variables().items():
            if "steps" in name:
                self.assign(variable, value)

    def counted(self, finite):
        """What steps that ran at once have left, as far as no order changes it."""
        wanted = ("_num_good_steps", "loss_scale") if finite else ("loss_scale", "_num_bad_steps")
        state = {
            name: self.value(variable)
            for name, variable in self.state_variables().items()
            if name.split()[0].endswith(wanted)
        }
        self.set_counters(0)
        return state

    def do_set(self, value):
        for name, variable in self.state_variables().items():
            if "steps" not in name:
                self.assign(variable, np.float32(value))
        return {}

    def do_threads(self, index, finite):
        """Some threads take finite steps at once; unless `finite`, this one takes others too."""
        self.call(index, None)
        self.set_counters(0)
        errors = []

        def work():
            try:
                with self.in_thread():
                    for _ in range(CALLS):
                        self.call(index, None)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        if not finite:
            for _ in range(CALLS // 2):
                self.call(index, ["nan", 0, 0, 0])
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return self.counted(finite)


class Graph(Side):
    """A graph with a Session."""

    def __init__(self, program, library):
        super().__init__(program, library)
        self.session = tf1.Session()
        self.initialized, self.trains, self.placeholders = set(), {}, {}
        self.events = []  # What was built, for a graph of the same.

    def in_session(self):
        return True

    def in_thread(self):
        return contextlib.nullcontext()

    def do(self, action):
        graph = tf1.get_default_graph()
        before = len(graph.get_operations())
        seen = super().do(action)
        seen = {"operations": len(graph.get_operations()) - before, **seen}
        if action[0] in ("threads", "both"):
            return seen
        seen["names"] = [variable.name for variable in tf1.global_variables()]
        ops = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
        seen["train_op"] = [history.kind(op) for op in ops]
        seen.update(self.run({v.name: v for v in tf1.global_variables()}))
        return seen

    def run(self, fetches, feeds=None):
        fresh = [v for v in tf1.global_variables() if id(v) not in self.initialized]
        self.initialized.update(map(id, fresh))
        if fresh:
            self.session.run([variable.initializer for variable in fresh])
        if isinstance(fetches, (list, dict)) and not fetches:  # Which a new graph refuses.
            return type(fetches)()
        return self.session.run(fetches, feeds)

    def value(self, variable):
        return self.run(variable)

    def assign(self, variable, value):
        self.run([variable])
        variable.load(value, self.session)

    def make_global_step(self):
        return tf1.train.get_or_create_global_step()

    def loss_as_given(self, loss):
        return loss()

    def variable(self, name, spec, random):
        shape, dtype = shape_of(spec), tf.as_dtype(spec["dtype"])
        value = random.uniform(-1, 1, shape).astype(dtype.as_numpy_dtype)
        options = {"trainable": spec["kind"] != "frozen"}
        if spec["partitions"] > 1 and len(shape) and shape[0] > 1 and spec["kind"] == "dense":
            options["partitioner"] = tf1.fixed_size_partitioner(spec["partitions"])
            options["initializer"] = tf1.constant_initializer(0.5)
        elif self.program["noise"]:  # Seeded by how many operations there are.
            options["initializer"] = tf1.random_uniform_initializer(-1, 1)
        else:
            options["initializer"] = tf1.constant_initializer(value)
        return tf1.get_variable(name, shape, dtype, **options)

    def trained(self, index):
        return [
            each
            for var in super().trained(index)
            for each in (var if isinstance(var, tf1_partitioned()) else [var])
        ]

    def network(self):
        if self.variables is None:
            self.placeholders = [
                [tf1.placeholder(tf.float32, shape_of(spec)) for spec in specs]
                for specs in self.program["variables"]
            ]
            self.chosen = tf1.placeholder(tf.bool, [])
            self.events.append(["network"])
        return super().network()

    def train(self, index):
        """The train op of an optimizer, built at the first call; returns what was returned, too."""
        if index not in self.trains:
            self.network()
            self.optimizer(index) if self.wrapped else self.scale(index)
            self.events.append(["build", index])
            inside, returned = self.program["inside"], []

            def build():
                made = self.step(index, self.placeholders[index])
                returned[:] = [made]
                return [
                    m for m in tf.nest.flatten(made) if isinstance(m, (tf.Operation, tf.Tensor))
                ]

            def chained(value):
                with tf.control_dependencies(build()):
                    return tf.identity(value)

            if inside == "cond":
                ops = [tf.cond(self.chosen, lambda: chained(1), lambda: tf.constant(0))]
            elif inside == "while":
                ops = [tf.while_loop(lambda i: i < 2, lambda i: chained(i + 1), [tf.constant(0)])]
            else:
                ops = build()
            self.trains[index] = ops, history.kind(returned[0])
        return self.trains[index]

    def feeds(self, index, fault):
        self.steps += 1
        specs = self.program["variables"][index]
        arrays = coefficients(specs, self.steps, fault)
        return {**dict(zip(self.placeholders[index], arrays)), self.chosen: True}

    def call(self, index, fault):
        self.run(self.train(index)[0], self.feeds(index, fault))

    def do_network(self):
        self.network()
        return {}

    def do_build(self, index):
        self.train(index)
        return {}

    def do_draw(self):
        self.events.append(["draw"])
        return {"value": self.run(tf.random.uniform([2]))}

    def do_read(self, index=0):
        self.events.append(["read"])
        scale = self.read(index)
        return {"returned": history.kind(scale), "value": self.run(scale), "name": name_of(scale)}

    def do_scale(self):
        self.events.append(["scale"])
        return super().do_scale()

    def do_take(self):
        self.events.append(["read"])
        self.taken.append(self.read())
        return {}

    def do_look(self):
        return {"values": self.run(self.taken)}

    def do_fetch(self, index):
        """The scale beside a step; which of the two comes first is not known."""
        ops, _ = self.train(index)
        self.run([*ops, self.read(index)], self.feeds(index, None))
        return {}

    def do_gradients(self, index):
        self.events.append(["gradients", index])
        self.network()
        grads, _ = self.gradients(index, self.loss(index, self.placeholders[index]))
        fetches = [grad for grad in grads if grad is not None]
        return {
            "returned": [history.kind(grad) for grad in grads],
            "grad_names": [name_of(grad) for grad in grads],
            "values": [
                list(value) if isinstance(value, tuple) else value
                for value in self.run(fetches, self.feeds(index, None))
            ],
        }

    def do_step(self, index, fault):
        ops, returned = self.train(index)
        feeds = self.feeds(index, fault)
        feeds[self.chosen] = (
            self.steps % 5 != 4
        )  # Where there is a choice, not every step is taken.
        self.run(ops, feeds)
        return {"returned": returned}

    def do_both(self, finite):
        """Two train ops in one run, some times; not both are to be faulty, which is a race."""
        ops = [self.train(0)[0], self.train(1)[0]]
        self.set_counters(0)
        for _ in range(RUNS):
            fault = None if finite else ["nan", 0, 0, 0]
            self.run(ops, {**self.feeds(0, fault), **self.feeds(1, None)})
        return self.counted(finite)

    def do_finalize(self):
        """Finalizes the graph, once there is all that a step needs."""
        for index in range(len(self.program["optimizers"])):
            self.train(index)
        tf1.get_default_graph().finalize()
        return {}

    def do_cross(self):
        """Saved, restored into the other class, trained, saved and restored into this one again.

        On the side of the original that other class is itself: what it does is what is to be seen.
        """
        before = self.run({v.name: v for v in tf1.global_variables()})
        if not before:
            return {}
        folder = tempfile.mkdtemp()
        paths = [os.path.join(folder, name) for name in "ab"]
        tf1.train.Saver().save(self.session, paths[0])
        with self.again("original") as side:
            tf1.train.Saver().restore(side.session, paths[0])
            side.initialized.update(map(id, tf1.global_variables()))
            after = side.run({v.name: v for v in tf1.global_variables()})
            kept = [name for name in before if not history.same(before[name], after.get(name))]
            side.steps = self.steps
            if side.trains:
                side.call(min(side.trains), None)
            tf1.train.Saver().save(side.session, paths[1])
            self.steps = side.steps
        tf1.train.Saver().restore(self.session, paths[1])
        return {"kept": kept}

    @contextlib.contextmanager
    def again(self, library):
        """A graph in which a library builds the same."""
        with graph(self.program, library) as side:
            for event in self.events:
                Side.do(side, event)
            yield side


def tf1_partitioned():
    from tensorflow.python.ops import variables

    return variables.PartitionedVariable


def name_of(value):
    if value is None:
        return None
    value = value.values if isinstance(value, tf.IndexedSlices) else value
    return value.op.name


@contextlib.contextmanager
def graph(program, library):
    version = 1 if program["place"] == "graph_v1" else 2
    resource = program["resource"]
    with modes.control_flow(version), tf.Graph().as_default(), tf1.variable_scope(
        "", use_resource=resource
    ):
        tf1.set_random_seed(3)
        side = Graph(program, library)
        with side.session:
            yield side


class Eager(Side):
    """Eager mode, or functions with one step each, maybe on two replicas."""

    def __init__(self, program, library):
        super().__init__(program, library)
        self.functions, self.kinds = {}, {}
        self.operations = None
        self.strategy = None
        if program["place"] == "mirrored":
            from tests import replicas

            self.replicas = replicas
            self.strategy = replicas.strategy("mirrored_2")
        if program["noise"] or any(action[0] == "draw" for action in program["actions"]):
            tf1.set_random_seed(3)

    def in_session(self):
        return False

    def in_thread(self):
        return modes.eager_mode()

    def do(self, action):
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            seen = super().do(action)
            if action[0] != "threads":
                seen.update(self.state())
        return seen

    def state(self):
        """Everything that steps change: {name: value}, or the values of all copies."""
        state = {}
        for i, variables in enumerate(self.variables or []):
            state.update({f"v{i}_{j}": self.value(v) for j, v in enumerate(variables)})
            if i in self.inner:
                inner = self.inner[i]
                for j, variable in enumerate(variables):
                    slots = [
                        (name, inner.get_slot(variable, name)) for name in inner.get_slot_names()
                    ]
                    state.update(
                        {f"v{i}_{j}/{n}": self.value(s) for n, s in slots if s is not None}
                    )
                # In eager mode names are made unique in the process.
                state.setdefault("names", []).extend(
                    re.sub(r"(_\d+)?:0$", "", v.name) for v in inner.variables()
                )
        if self.global_step is not None:
            state["global_step"] = self.value(self.global_step)
        state.update({n: self.value(v) for n, v in self.state_variables().items()})
        return state

    def value(self, variable):
        if self.strategy:
            return [copy.numpy() for copy in self.replicas.copies(self.strategy, variable)]
        return variable.numpy()

    def assign(self, variable, value):
        variable.assign(value)

    def make_global_step(self):
        return tf1.Variable(0, trainable=False, dtype=tf.int64, use_resource=True)

    def loss_as_given(self, loss):
        return loss

    def variable(self, name, spec, random):
        dtype = tf.as_dtype(spec["dtype"])
        value = random.uniform(-1, 1, shape_of(spec)).astype(dtype.as_numpy_dtype)
        return tf.Variable(value, trainable=spec["kind"] != "frozen", name=name)

    def call(self, index, fault, padding=0):
        self.steps += 1
        specs = self.program["variables"][index]
        arrays = [coefficients(specs, self.steps, fault)]
        if self.strategy:  # The fault is of one replica alone.
            arrays.append(coefficients(specs, self.steps, None))
            if fault and fault[3]:
                arrays.reverse()
        values = [tf.constant(np.stack([array[i] for array in arrays])) for i in range(len(specs))]
        step = self.functions.get(index)
        if step is None:
            self.network()
            self.optimizer(index) if self.wrapped else self.scale(index)
            step = self.functions[index] = self.compiled(index)
        return step(tf.zeros([padding]), *values)

    def compiled(self, index):
        def step(padding, *coefs):
            coefs = [self.own(coef) for coef in coefs]
            result = self.step(index, coefs)
            if self.program["place"] in ("function", "jit"):  # What they return they do not.
                kept = result[1] if isinstance(result, tuple) else None
                self.kinds[index] = history.kind(result)
                return kept if isinstance(kept, tf.Tensor) else tf.zeros([])
            return result

        if self.program["place"] == "function":
            return tf.function(step, autograph=False)
        if self.program["place"] == "jit":
            return modes.compiled(step)
        if self.strategy:
            return lambda *args: self.replicas.run(self.strategy, step, args)
        return step

    def own(self, coef):
        if not self.strategy:
            return coef[0]
        return tf.gather(coef, self.replicas.replica_id())

    def count_operations(self):
        graph = tf1.get_default_graph()
        self.operations = len(graph.get_operations()) if graph.building_function else None

    def do_step(self, index, fault, padding=0):
        result = self.call(index, fault, padding)
        seen = {"operations": self.operations}
        if not self.strategy:
            seen["returned"] = self.kinds.get(index) or history.kind(result)
        flag = result[1] if isinstance(result, tuple) else result
        if not self.wrapped and isinstance(flag, tf.Tensor):
            seen["value"] = flag.numpy()
        return seen

    def do_retrace(self, index):
        return self.do_step(index, None, padding=self.steps % 3)

    def do_draw(self):
        return {"value": tf.random.uniform([2]).numpy()}

    def do_read(self):
        scale = self.read()
        value = scale.numpy() if hasattr(scale, "numpy") else self.value(scale)
        return {"returned": history.kind(scale), "value": value}

    def do_take(self):
        self.taken.append(self.read())
        return {}

    def do_look(self):
        return {"values": [np.asarray(taken.numpy()) for taken in self.taken]}

    def do_gradients(self, index):
        self.network()
        self.steps += 1
        specs = self.program["variables"][index]
        coefs = [tf.constant(array) for array in coefficients(specs, self.steps, None)]
        grads, _ = self.gradients(index, lambda: self.loss(index, coefs))
        return {
            "returned": [history.kind(grad) for grad in grads],
            "values": [None if g is None else tf.convert_to_tensor(g).numpy() for g in grads],
        }

    def checkpoint(self):
        self.network()
        parts = {f"o{i}": self.optimizer(i) for i in range(len(self.program["optimizers"]))}
        parts.update(
            {f"v{i}_{j}": v for i, vs in enumerate(self.variables) for j, v in enumerate(vs)}
        )
        return tf.train.Checkpoint(**parts)

    def do_cross(self):
        """As in a graph, through a `tf.train.Checkpoint`."""
        folder = tempfile.mkdtemp()
        before = self.state()
        path = self.checkpoint().save(os.path.join(folder, "a"))
        other = Eager(self.program, "original")
        status = other.checkpoint().restore(path)
        status.assert_existing_objects_matched()
        other.steps = self.steps
        other.call(0, None)
        path = other.checkpoint().save(os.path.join(folder, "b"))
        again = Eager(self.program, self.library)
        again.checkpoint().restore(path).assert_existing_objects_matched()
        again.steps = other.steps
        again.taken = self.taken
        self.__dict__.update(again.__dict__)
        return {"kept": sorted(before)}


@contextlib.contextmanager
def eager(program, library):
    with modes.eager_mode():
        yield Eager(program, library)


def side(program, library):
    """A context in which a `Side` takes the actions of a program."""
    return (graph if program["place"].startswith("graph") else eager)(program, library)
