"""How many kernels a step launches on a GPU, counted by TensorFlow's profiler.

Where there is none, what the executor of the host runs can be counted in the same way.
"""

import pathlib
import re
import tempfile

import tensorflow as tf

KERNELS, OPERATIONS = KINDS = ("kernels", "operations")
STEPS = 5
# Beside kernels, a GPU's streams show copies and fills.
_NO_KERNEL = re.compile("Memcpy|Memset|memcpy|memset")
# As the executor calls them: name of the node, then type, which begins with a capital letter; and
# in eager mode, where a function, whose name begins with underscores, is no operation of its own.
_OPERATION = re.compile(r"[^:\s]+:_?[A-Z]\w*|EagerLocalExecute: (?!__)")


def is_counted(kind, plane, line, event):
    """Whether an event of a trace is one of a kind.

    Args:
      kind: str, one of `KINDS`.
      plane: str, the name of the plane that it is on, one for each device and one for the host.
      line: str, the name of its line there, which of a GPU is a stream.
      event: str, its name.
    """
    if kind == KERNELS:
        on_stream = plane.startswith("/device:GPU:") and line.startswith("Stream")
        return on_stream and not _NO_KERNEL.match(event)
    return plane.startswith("/host:CPU") and bool(_OPERATION.match(event))


def count(folder, kind):
    """Returns how many events of a kind the profiler wrote into a folder.

    Raises:
      FileNotFoundError: there is no trace.
    """
    # As late as this, since no other part needs it, and it is not public.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    paths = sorted(pathlib.Path(folder).glob("**/*.xplane.pb"))
    if not paths:
        raise FileNotFoundError(f"The profiler wrote no trace into {folder}.")
    found = 0
    for path in paths:
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            names = {key: each.name for key, each in plane.event_metadata.items()}
            for line in plane.lines:
                found += sum(
                    is_counted(kind, plane.name, line.name, names[event.metadata_id])
                    for event in line.events
                )
    return found


def per_step(step, kind):
    """Returns how many kernels, or operations, a step takes, as the mean of some.

    Args:
      step: function without arguments, which ran before.
      kind: str, one of `KINDS`.
    """
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=1 if kind == KERNELS else 3, python_tracer_level=0, device_tracer_level=1
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            for _ in range(STEPS):
                step()
        finally:
            tf.profiler.experimental.stop()
        return count(folder, kind) / STEPS
