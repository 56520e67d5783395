"""Each operation of a step has a kernel for GPUs, on builds of TensorFlow that have those.

No GPU is needed to look them up. An operation without one would run on the CPU, and its inputs and
outputs be copied, in every step.
"""

import itertools
import unittest

import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes, modes
from tests.v1_optimizers import sgd, wrapped_in
from tf_lossscale_compat import DynamicLossScale, ExponentialUpdateLossScaleManager, FixedLossScale
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

try:
    from tensorflow.python.framework import kernels
except ImportError:
    kernels = None

tf1 = tf.compat.v1

DTYPES = ("float32", "float16", "bfloat16")
# What holds no data on a device: the graph's own means, and names of functions.
STRUCTURE = ("Const", "NoOp", "Placeholder", "StatefulPartitionedCall", "PartitionedCall")

# Variables of int32, r1.15's counters, are kept on the CPU by TensorFlow itself.
STATE = ("VarHandleOp", "AssignVariableOp", "AssignAddVariableOp", "ReadVariableOp")


OPTIMIZERS = {
    "contrib": lambda: contrib.LossScaleOptimizer(
        sgd(), ExponentialUpdateLossScaleManager(8.0, 2), keep_sparse=True
    ),
    "dynamic": lambda: MixedPrecisionLossScaleOptimizer(sgd(), DynamicLossScale(8.0)),
    "fixed": lambda: MixedPrecisionLossScaleOptimizer(
        sgd(), FixedLossScale(8.0, skip_nonfinite=True)
    ),
}


def device_types(op, types):
    """Returns the kinds of devices that have a kernel of `op` for these types of its attributes."""
    found = set()
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        allowed = {each.name: each.allowed_values.list.type for each in kernel.constraint}
        if all(types.get(name) in values for name, values in allowed.items()):
            found.add(kernel.device_type)
    return found


def without_kernel(graph):
    """Returns the operations of a graph, and of what it calls, that have no kernel for GPUs."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    missing = set()
    for node in nodes:
        types = {name: value.type for name, value in node.attr.items() if value.type}
        on_cpu = node.op in STATE and tf.int32.as_datatype_enum in types.values()
        if node.op in STRUCTURE or on_cpu:
            continue
        if not device_types(node.op, types) & {"GPU", "DEFAULT"}:
            missing.add((node.op, tuple(tf.as_dtype(each).name for each in types.values())))
    return missing


def has_gpu_kernels():
    if kernels is None:
        return False
    return "GPU" in device_types("MatMul", {"T": tf.float32.as_datatype_enum})


@unittest.skipUnless(has_gpu_kernels(), "this TensorFlow has no kernels for GPUs")
class GpuKernelsTest(modes.EagerTestCase):
    def check(self, step, plain):
        """Holds what `step` adds to what `plain` needs, both functions of a list of gradients."""
        missing = []
        for build in (step, plain):
            with tf.Graph().as_default() as graph:
                build()
            missing.append(without_kernel(graph))
        self.assertEqual(missing[0] - missing[1], set())

    def gradients(self, dtype, sparse):
        """Pairs of gradients, small and large ones, and variables."""
        pairs = []
        for shape in ([4, 4], [3], [1024, 512]):
            variable = tf1.Variable(tf.zeros(shape, dtype), use_resource=True)
            gradient = tf1.placeholder(dtype, shape)
            if sparse:
                indices = tf1.placeholder(tf.int32, [None])
                gradient = tf.IndexedSlices(gradient, indices, tf.constant(shape, tf.int32))
            pairs.append((gradient, variable))
        return pairs

    @parameterized.parameters(
        *itertools.product(OPTIMIZERS, DTYPES, (False, True), modes.GRAPH, (False, True))
    )
    def test_v1(self, name, dtype, sparse, mode, scales):
        multiplies = device_types("Mul", {"T": tf.as_dtype(dtype).as_datatype_enum})
        if "GPU" not in multiplies:
            self.skipTest(f"this TensorFlow multiplies no {dtype} on GPUs")

        def step(make):
            pairs = self.gradients(dtype, sparse)
            opt = make()
            if not scales:
                opt.apply_gradients(pairs)
                return
            wrapped_in(opt).compute_gradients = lambda loss, *args, **kwargs: pairs
            opt.minimize(tf.constant(1.0), tf1.train.get_or_create_global_step())

        with modes.control_flow(1 if mode == "graph_v1" else 2):
            self.check(lambda: step(OPTIMIZERS[name]), lambda: step(sgd))

    @parameterized.parameters(*itertools.product(DTYPES[:2], (False, True)))
    def test_in_a_function(self, dtype, sparse):
        home = keras_homes.available()[0]

        def traced(wrapped):
            variables = [tf.Variable(tf.zeros(shape, dtype)) for shape in ([4, 4], [1024, 512])]
            opt = home.SGD(0.1)
            if wrapped:
                opt = mixed_precision.LossScaleOptimizer(opt, initial_scale=8)

            def step(*grads):
                if sparse:
                    grads = [tf.IndexedSlices(g, tf.range(g.shape[0]), g.shape) for g in grads]
                pairs = list(zip(grads, variables))
                opt.apply_gradients(pairs, **({"scaled": True} if wrapped else {}))

            specs = [tf.TensorSpec(variable.shape, dtype) for variable in variables]
            return tf.function(step, autograph=False).get_concrete_function(*specs).graph

        missing = [without_kernel(traced(wrapped)) for wrapped in (True, False)]
        self.assertEqual(missing[0] - missing[1], set())
