"""Each test of Horovod 0.28 for TensorFlow and Keras has its place: a row or a test that checks the same, or why not.

A place is a row of tests/ranks/test_horovod_behaviour.py, or `path::test` below tests/. With a reason, the behaviour
differs by decision, and the place checks ours. Tests whose names differ in `gpu` for `cpu` only are one: all tests of
tests/ranks run on a GPU, too, if there is one (`make test-gpu`).
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = TESTS / "ranks" / "test_horovod_behaviour.py"

_SUM = "the gradient of the sum over the ranks; TFDIST_GRADIENTS=0.28 gives Horovod's, which the row checks"
_PLAIN = "the class is Keras' own, not one of horovod._keras"
_COUNTED = "Keras counts the passes, there is no helper with a counter"
_OPTIMIZER = "ranks/test_optimizer.py::"
_FACADE = "ranks/test_facade.py::"

TENSORFLOW = {
    "gpu_required": (
        "unit/native/test_gpu.py::test_a_rank_without_a_gpu_is_not_left_half_started",
        "it is a rule of Horovod's test bench",
    ),
    "horovod_rank": "places",
    "horovod_size": "places",
    "horovod_rank_op": "places",
    "horovod_local_rank_op": "places",
    "horovod_size_op": "places",
    "horovod_local_size_op": "places",
    "horovod_allreduce_cpu": "sum",
    "horovod_allreduce_average_cpu": "average",
    "horovod_allreduce_min_cpu": "min",
    "horovod_allreduce_max_cpu": "max",
    "horovod_allreduce_product_cpu": "product",
    "horovod_allreduce_cpu_fused": "sum",
    "horovod_allreduce_cpu_prescale": "prescale",
    "horovod_allreduce_cpu_postscale": "postscale",
    "horovod_allreduce_indexed_slices_cpu": "slices",
    "horovod_allreduce_indexed_slices_average_cpu": "slices, average",
    "horovod_allreduce_indexed_slices_op_error": "slices, other reductions",
    "horovod_allreduce_indexed_slices_prescale_postscale_error": (
        "ranks/test_gradient.py::test_among_all_ranks",
        "factors of slices are applied",
    ),
    "horovod_allreduce_multi_gpu": (
        "unit/native/test_gpu.py::test_each_rank_takes_its_own",
        "a process has one GPU",
    ),
    "horovod_allreduce_error": "allreduce differs",
    "horovod_allreduce_type_error": "allreduce differs",
    "horovod_allreduce_cpu_gpu_error": (
        "unit/native/test_gpu.py::test_each_rank_takes_its_own",
        "a process that sees a GPU runs all collectives there",
    ),
    "horovod_allreduce_grad_cpu": "gradient of sum",
    "horovod_allreduce_average_grad_cpu": "gradient of average",
    "horovod_grouped_allreduce_cpu": "grouped sum",
    "horovod_grouped_allreduce_indexed_slices_cpu": "grouped slices",
    "horovod_grouped_allreduce_mixed_indexed_slices_cpu": "slices beside others",
    "horovod_grouped_allreduce_average_cpu": "grouped average",
    "horovod_grouped_allreduce_min_cpu": "grouped min",
    "horovod_grouped_allreduce_max_cpu": "grouped max",
    "horovod_grouped_allreduce_product_cpu": "grouped product",
    "horovod_grouped_allreduce_indexed_slices_average_cpu": "grouped slices, average",
    "horovod_grouped_allreduce_mixed_indexed_slices_average_cpu": "slices beside others, average",
    "horovod_grouped_allreduce_indexed_slices_op_error": "slices, other reductions",
    "horovod_grouped_allreduce_mixed_indexed_slices_op_error": "slices, other reductions",
    "horovod_grouped_allreduce_grad_cpu": "gradient of grouped sum",
    "horovod_allgather_cpu": "allgather",
    "horovod_allgather_fused_cpu": "allgather",
    "horovod_allgather_variable_size_fused_cpu": "ragged allgather",
    "horovod_allgather_variable_size_cpu": "ragged allgather",
    "horovod_allgather_error": "allgather differs",
    "horovod_allgather_type_error": "allgather differs",
    "horovod_allgather_grad_cpu": ("gradient of allgather of 0.28", _SUM),
    "horovod_broadcast_cpu": "broadcast",
    "horovod_broadcast_inplace_cpu": "broadcast in place",
    "horovod_broadcast_inplace_multiple_cpu": "broadcast in place",
    "horovod_broadcast_error": "broadcast differs",
    "horovod_broadcast_type_error": "broadcast differs",
    "horovod_broadcast_rank_error": "broadcast differs",
    "horovod_broadcast_grad_cpu": ("gradient of broadcast of 0.28", _SUM),
    "horovod_alltoall_cpu": "alltoall",
    "horovod_alltoall_equal_split_cpu": "alltoall without splits",
    "horovod_alltoall_empty_cpu": "alltoall of nothing",
    "horovod_alltoall_one_rank_sends_nothing_cpu": "alltoall, one sends nothing",
    "horovod_alltoall_one_rank_receives_nothing_cpu": "alltoall, one receives nothing",
    "horovod_alltoall_zero_splits_cpu": "alltoall among some",
    "horovod_alltoall_type_error": "alltoall differs",
    "horovod_alltoall_equal_split_length_error": "alltoall with wrong splits",
    "horovod_alltoall_splits_error": "alltoall with wrong splits",
    "horovod_alltoall_rank_error": "alltoall differs",
    "horovod_alltoall_grad_cpu": "gradient of alltoall",
    "horovod_alltoall_equal_split_grad_cpu": "gradient of alltoall without splits",
    "horovod_broadcast_eager_mode_error": "global variables",
    "horovod_broadcast_graph_mode": "global variables",
    "compression_fp16": "compression",
    "broadcast_object": "objects",
    "broadcast_object_fn": "objects",
    "allgather_object": "objects",
    "elastic_state": "ranks/test_elastic_facade.py::test_variables_in_horovods_order",
    "horovod_join_allreduce": "ranks/test_join.py::test_sum_and_average",
    "horovod_syncbn_cpu": "ranks/test_sync_batch_norm.py::test_equals_the_concatenated_batch",
    "local_gradient_aggregation": "ranks/test_session_training.py::test_several_passes_for_one_update",
    "local_gradient_aggregation_sparse": "ranks/test_session_training.py::test_rows_of_a_table",
    "horovod_reducescatter_cpu": "reducescatter",
    "horovod_reducescatter_cpu_prescale": "reducescatter, prescale",
    "horovod_reducescatter_cpu_postscale": "reducescatter, postscale",
    "horovod_reducescatter_cpu_fused": "reducescatter",
    "horovod_reducescatter_cpu_uneven": "uneven reducescatter",
    "horovod_reducescatter_cpu_uneven_fused": "uneven reducescatter",
    "horovod_reducescatter_scalar_error": "reducescatter of a scalar",
    "horovod_reducescatter_error": "reducescatter differs",
    "horovod_reducescatter_type_error": "reducescatter differs",
    "horovod_reducescatter_grad_cpu": ("gradient of reducescatter of 0.28", _SUM),
    "horovod_grouped_reducescatter_cpu": "grouped reducescatter",
    "horovod_grouped_reducescatter_cpu_prescale": "reducescatter, prescale",
    "horovod_grouped_reducescatter_cpu_postscale": "reducescatter, postscale",
    "horovod_grouped_reducescatter_scalar_error": "reducescatter of a scalar",
    "horovod_grouped_reducescatter_grad_cpu": ("gradient of reducescatter of 0.28", _SUM),
    "horovod_grouped_allgather_cpu": "grouped allgather",
    "horovod_grouped_allgather_grad_cpu": ("gradient of allgather of 0.28", _SUM),
    "partial_distributed_gradient_tape": "ranks/test_gradient_tape.py::test_local_layers",
    "model_parallel_model": "examples/test_horovod_style.py::test_local_embedding",
}
_NO_SESSIONS = "Keras 3 has no sessions; the same in eager execution"
KERAS = {
    "train_model": ("examples/test_horovod_style.py::test_script_for_keras_2", _NO_SESSIONS),
    "train_model_with_gradient_aggregation": (f"{_OPTIMIZER}test_backward_passes_are_one_reduction", _NO_SESSIONS),
    "sparse_as_dense": (f"{_OPTIMIZER}test_indexed_slices", _NO_SESSIONS),
    "load_model": (f"{_FACADE}test_load_model_trains_on_where_it_was_saved", _PLAIN),
    "load_model_custom_optimizers": (f"{_FACADE}test_load_model_with_an_optimizer_and_a_layer_of_ones_own", _PLAIN),
    "load_model_custom_objects": (f"{_FACADE}test_load_model_with_an_optimizer_and_a_layer_of_ones_own", _PLAIN),
    "load_model_broadcast": "ranks/callbacks/test_broadcast_global_variables.py::test_before_the_first_step",
    "from_config": (
        f"{_OPTIMIZER}test_a_configuration_makes_an_optimizer_that_reduces_alike",
        "that of the class, which does not know how the optimizer reduces, is refused",
    ),
    "elastic_state": "ranks/test_elastic_facade.py::test_a_model_in_horovods_order",
    "gradient_aggregation": (f"{_OPTIMIZER}test_parity_of_backward_passes", _COUNTED),
}
KERAS_2 = {
    "train_model_lr_schedule": (
        "ranks/callbacks/test_learning_rate_warmup.py::test_rates_of_a_schedule",
        "the warm-up starts in the first step",
    ),
    "sparse_as_dense": f"{_OPTIMIZER}test_indexed_slices",
    "sparse_as_dense_with_grad_aggregation": (f"{_OPTIMIZER}test_backward_passes_are_one_reduction", _COUNTED),
    "grad_aggregation_with_inf_grad": f"{_OPTIMIZER}test_an_infinity_stays_in_its_update",
    "from_config": KERAS["from_config"],
    "elastic_state": KERAS["elastic_state"],
    "gradient_aggregation": KERAS["gradient_aggregation"],
    "gradient_aggregation_with_local_vars": "ranks/test_partial_optimizer.py::test_with_backward_passes",
    "partial_distributed_optimizer": "ranks/test_partial_optimizer.py::test_exact_updates",
    "broadcast_global_variables_callback_with_local_vars": (
        "ranks/callbacks/test_broadcast_global_variables.py::test_local_variables_stay"
    ),
}
PROCESS_SETS = {
    "horovod_size_op_process_set": "sizes of sets",
    "horovod_process_set_included_op": "sizes of sets",
    "horovod_allreduce_cpu_process_sets": "sum in a set",
    "horovod_allreduce_process_set_id_error": "sets of others",
    "horovod_allreduce_grad_cpu_process_sets": "gradient of sum in a set",
    "horovod_grouped_allreduce_cpu_process_sets": "grouped sum in a set",
    "horovod_grouped_allreduce_grad_cpu_process_sets": "gradient of sum in a set",
    "horovod_allgather_cpu_process_sets": "allgather in a set",
    "horovod_allgather_grad_cpu_process_sets": ("gradient of allgather in a set", _SUM),
    "horovod_broadcast_cpu_process_sets": "broadcast in a set",
    "broadcast_variables_process_sets": "variables in a set",
    "horovod_broadcast_grad_cpu_process_sets": ("gradient of broadcast in a set", _SUM),
    "horovod_alltoall_cpu_process_sets": "alltoall in a set",
    "horovod_alltoall_grad_cpu_process_sets": "gradient of alltoall in a set",
    "broadcast_object_process_sets": "objects",
    "broadcast_object_fn_process_sets": "objects",
    "allgather_object_process_sets": "objects",
    "legacy_DistributedOptimizer_process_sets": "training in a set",
    "distributed_gradient_tape_process_sets": "training in a set",
    "horovod_reducescatter_cpu_process_sets": "reducescatter in a set",
    "horovod_reducescatter_grad_cpu_process_sets": ("gradient of reducescatter in a set", _SUM),
    "horovod_grouped_reducescatter_cpu_process_sets": "average of reducescatter in a set",
    "horovod_grouped_allgather_cpu_process_sets": "allgather in a set",
}
LEDGER = {
    f"{file}: {name}": place if isinstance(place, tuple) else (place, "")
    for file, names in (
        ("test_tensorflow", TENSORFLOW),
        ("test_tensorflow_keras", KERAS),
        ("test_tensorflow2_keras", KERAS_2),
        ("test_tensorflow_process_sets", PROCESS_SETS),
    )
    for name, place in names.items()
}


def rows() -> set[str]:
    """The names of the rows, without a world of ranks."""
    tree = ast.parse(ROWS.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROWS"]
    named, names = assigned[0].value, set()
    assert isinstance(named, ast.Dict)
    for key in named.keys:
        names |= {ast.literal_eval(key)} if key is not None else set()
    for prefix in ("", "grouped "):
        names |= {f"{prefix}{each}" for each in re.findall(r'^    "(\w+)": \(hvd\.', ROWS.read_text(), re.MULTILINE)}
    return names


@pytest.mark.parametrize("name", LEDGER)
def test_place_is_there(name: str) -> None:
    place, reason = LEDGER[name]
    path, found, test = place.partition("::")
    if found:
        assert re.search(rf"^(?:def|    def|async def) {test}\b", (TESTS / path).read_text(), re.MULTILINE), place
    else:
        assert place in rows()
    assert not reason or len(reason.split()) > 3


def test_every_row_has_a_test_of_horovod() -> None:
    """What is left over says more of us than of Horovod: our own gradients, beside Horovod's."""
    ours = {"gradient of allgather", "gradient of broadcast", "gradient of reducescatter"}
    ours |= {"reducescatter, average", "gradient of its average of 0.28"}
    assert rows() - {place for place, _ in LEDGER.values()} == ours


def test_counts_are_those_of_horovod() -> None:
    """192 tests, of which 56 are for GPUs and have a twin."""
    assert len(LEDGER) == 192 - 56
