"""The successors of members of `tf.contrib`.

TensorFlow 2.0 removed all of `tf.contrib`. Parts of it moved to other packages:
https://github.com/tensorflow/community/blob/master/rfcs/20180907-contrib-sunset.md
"""

from __future__ import annotations

_ADDONS = "that of the package tensorflow-addons, which ended with TensorFlow 2.15"
_SUCCESSORS = {
    "cudnn_rnn": "tf.compat.v1.keras.layers.CuDNNLSTM and its like",
    "data": "tf.data.experimental",
    "distribute": "tf.distribute",
    "eager": "tf",
    "framework": "tf_slim",
    "image": _ADDONS,
    "keras": "tf.keras",
    "layers": "tf_slim",
    "losses": "tf_slim.losses",
    "lookup": "tf.lookup",
    "metrics": "tf_slim.metrics",
    "opt": _ADDONS,
    "rnn": "tf.compat.v1.nn.rnn_cell",
    "seq2seq": _ADDONS,
    "slim": "tf_slim",
    "summary": "tf.compat.v2.summary",
    "tpu": "tf.compat.v1.tpu",
    "training": "tf_slim.training",
}
# Only these names of these modules moved; the modules' other names are gone.
_MOVED = {
    "distribute": "CrossDeviceOps MirroredStrategy OneDeviceStrategy ParameterServerStrategy"
    " ReplicaContext TPUStrategy get_replica_context get_strategy has_strategy"
    " in_cross_replica_context",
    "eager": "GradientTape TensorSpec Variable custom_gradient executing_eagerly function metrics",
    "framework": "VariableDeviceChooser add_arg_scope add_model_variable arg_scope"
    " arg_scoped_arguments assert_global_step assert_or_get_global_step assign_from_checkpoint"
    " assign_from_checkpoint_fn assign_from_values assign_from_values_fn create_global_step"
    " current_arg_scope filter_variables get_global_step get_local_variables get_model_variables"
    " get_or_create_global_step get_trainable_variables get_unique_variable get_variable_full_name"
    " get_variables get_variables_by_name get_variables_by_suffix get_variables_to_restore"
    " global_variable has_arg_scope local_variable model_variable variable",
    "lookup": "KeyValueTensorInitializer TextFileIndex TextFileInitializer",
    "rnn": "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple"
    " MultiRNNCell RNNCell ResidualWrapper",
    "summary": "SummaryWriter audio create_file_writer flush graph histogram image scalar"
    " should_record_summaries",
    "training": "add_gradients_summaries clip_gradient_norms clip_gradient_norms_fn create_train_op"
    " multiply_gradients train",
}
# These names of these modules did not move.
_LAYERS_REMOVED = (
    "SPARSE_FEATURE_CROSS_DEFAULT_HASH_KEY bow_encoder create_feature_spec_for_parsing"
    " embed_sequence embedding_lookup_unique make_place_holder_tensors_for_base_features"
    " multi_class_target regression_target transform_features"
)
_REMOVED = {
    "data": "CheckpointInputPipelineHook LMDBDataset assert_element_shape batch_and_drop_remainder"
    " padded_batch_and_drop_remainder read_batch_features reduce_dataset sliding_window_batch"
    " sloppy_interleave",
    "layers": _LAYERS_REMOVED,
    "slim": f"{_LAYERS_REMOVED} DataFrameColumn InputLayer ProblemType binary_svm_target deprecated"
    " deprecated_arg_values embedding_lookup_sparse_with_distributed_aggregation experimental"
    " get_default_binary_metrics_for_eval make_all scattered_embedding_lookup"
    " scattered_embedding_lookup_sparse sparse_feature_cross zero_initializer",
}
_NEW_NAMES = {
    "distribute.CollectiveAllReduceStrategy": "tf.distribute.MultiWorkerMirroredStrategy",
    "distribute.get_loss_reduction": "tf.compat.v1.distribute.get_loss_reduction",
    "eager.Checkpoint": "tf.train.Checkpoint",
    "eager.defun": "tf.function",
    "framework.argsort": "tf.argsort",
    "framework.init_from_checkpoint": "tf.compat.v1.train.init_from_checkpoint",
    "framework.is_tensor": "tf.is_tensor",
    "framework.list_variables": "tf.train.list_variables",
    "framework.load_checkpoint": "tf.train.load_checkpoint",
    "framework.load_variable": "tf.train.load_variable",
    "framework.nest": "tf.nest",
    "framework.py_func": "tf.compat.v1.py_func",
    "framework.sort": "tf.sort",
    "layers.safe_embedding_lookup_sparse": "tf.compat.v1.nn.safe_embedding_lookup_sparse",
    "lookup.HashTable": "tf.lookup.StaticHashTable",
    "lookup.MutableHashTable": "tf.lookup.experimental.MutableHashTable",
    "lookup.MutableDenseHashTable": "tf.lookup.experimental.DenseHashTable",
    "metrics.confusion_matrix": "tf.math.confusion_matrix",
    "metrics.set_difference": "tf.sets.difference",
    "metrics.set_intersection": "tf.sets.intersection",
    "metrics.set_size": "tf.sets.size",
    "metrics.set_union": "tf.sets.union",
    "rnn.static_bidirectional_rnn": "tf.compat.v1.nn.static_bidirectional_rnn",
    "rnn.static_rnn": "tf.compat.v1.nn.static_rnn",
    "rnn.static_state_saving_rnn": "tf.compat.v1.nn.static_state_saving_rnn",
    "slim.safe_embedding_lookup_sparse": "tf.compat.v1.nn.safe_embedding_lookup_sparse",
}
_NOTES = {  # For imports of which only contrib's module is known, and not the member.
    "layers": ", `instance_norm` and `group_norm` from `tf_slim.layers.normalization`",
    "training": ", which has no `HParams`: write a class of your own for it",
}


def successor(name: str) -> str | None:
    """Returns what to write instead of a name such as `tf.contrib.layers.layer_norm`, or None."""
    module, *rest = name.split(".")[2:]
    home = _SUCCESSORS.get(module)
    if home is None or " " in home:
        return home
    member = rest[0] if rest else ""
    if member == "HParams":
        return "a class of your own, such as types.SimpleNamespace"
    if member in ("instance_norm", "group_norm"):
        home = "tf_slim.layers.normalization"
        return f"`{member}` of the package tf-slim (`from {home} import {member}`)"
    if "_column" in member:
        return "the counterpart in `tf.feature_column`"
    new_name = _NEW_NAMES.get(f"{module}.{member}")
    if new_name is not None:
        return f"`{'.'.join([new_name, *rest[1:]])}`"
    moved = member in _MOVED[module].split() if module in _MOVED else None
    if member and (moved is False or member in _REMOVED.get(module, "").split()):
        return None
    new = f"`{'.'.join([home, *rest])}`"
    if not home.startswith("tf_slim"):
        return new
    imported = "import tf_slim as slim" if module == "slim" else "import tf_slim"
    return f"{new} of the package tf-slim (`{imported}`)" + ("" if rest else _NOTES.get(module, ""))
