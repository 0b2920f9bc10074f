"""Each test of Horovod 0.28 for PyTorch has its place: the test that checks the same on 1, 2 and 3 ranks, or why not.

A place is `file::test`, where the file is one of ranks/ without `_on_ranks.py`, or one beside this. With a reason, the
behaviour differs by decision, and the place checks ours.
"""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

_SUM = "the gradient of the sum over the ranks; TFDIST_GRADIENTS=0.28 gives Horovod's, which the place checks, too"
_HOST = "a tensor on a GPU travels through the host's memory, like any other"
_MISMATCH = "a MismatchError, which is a ValueError and names what each rank called"
_GRADIENTS = "gradient::test_ours_and_horovods"
_MISMATCHES = ("handle::test_a_mismatch_is_an_error_on_every_rank", _MISMATCH)
_IN_USE = "handle::test_a_name_that_is_in_use"
_UNDER_WAY = "handle::test_all_dtypes_are_under_way_at_once"
_REDUCE, _FACTORS = "collective::test_allreduce", "collective::test_factors"
_SCATTER = "collective::test_reducescatter_of_every_dtype"
_REDUCE_IN_A_SET, _MOVE_IN_A_SET = "collective::test_reductions_in_a_set", "collective::test_moves_in_a_set"

WORLD = {
    "gpu_required": ("collective::test_allreduce", "it is a rule of Horovod's test bench"),
    "horovod_reinit": (
        "test_process.py::test_init_after_shutdown",
        "a job of tfdistrun without MPI starts once, and init says so; an only rank starts again",
    ),
    "horovod_is_initialized": "test_process.py::test_init_after_shutdown",
    "horovod_rank": "world::test_places",
    "horovod_size": "world::test_places",
    "process_set_barrier_op": "world::test_a_barrier_of_a_set_waits_for_its_ranks_alone",
    "global_barrier_op": "world::test_a_barrier_waits_for_all",
    "barrier_with_multiple_collectives": "handle::test_a_barrier_among_open_handles",
    "timeline_api": (
        "world::test_timelines_one_after_the_other",
        "each rank has a file of its own, and a second start without a stop is an error",
    ),
}
ALLREDUCE = {
    "horovod_allreduce": _REDUCE,
    "horovod_allreduce_average": _REDUCE,
    "horovod_allreduce_min": _REDUCE,
    "horovod_allreduce_max": _REDUCE,
    "horovod_allreduce_product": _REDUCE,
    "horovod_allreduce_inplace": _REDUCE,
    "horovod_allreduce_async_fused": _UNDER_WAY,
    "horovod_allreduce_multi_gpu": (_REDUCE, _HOST),
    "horovod_allreduce_prescale": _FACTORS,
    "horovod_allreduce_postscale": _FACTORS,
    "horovod_allreduce_process_sets": _REDUCE_IN_A_SET,
    "horovod_allreduce_error": _MISMATCHES,
    "horovod_allreduce_type_error": _MISMATCHES,
    "horovod_allreduce_cpu_gpu_error": (_REDUCE, _HOST),
    "horovod_allreduce_duplicate_name_error": _IN_USE,
    "horovod_allreduce_grad": _GRADIENTS,
    "horovod_allreduce_grad_average": _GRADIENTS,
    "horovod_allreduce_grad_process_sets": _GRADIENTS,
    "horovod_grouped_allreduce": _REDUCE,
    "horovod_grouped_allreduce_average": _REDUCE,
    "horovod_grouped_allreduce_inplace": _REDUCE,
    "horovod_grouped_allreduce_process_sets": _REDUCE_IN_A_SET,
    "horovod_grouped_allreduce_cpu_gpu_error": (_REDUCE, _HOST),
    "horovod_grouped_allreduce_grad": _GRADIENTS,
    "horovod_grouped_allreduce_grad_average": _GRADIENTS,
    "horovod_grouped_allreduce_grad_process_sets": _GRADIENTS,
    "horovod_join_allreduce": "handle::test_each_rank_joins_first",
    "compression_fp16": "collective::test_compression_without_a_collective",
    "async_sparse_allreduce": "collective::test_many_sparse_tensors",
    "async_sparse_allreduce_process_sets": "collective::test_many_sparse_tensors",
}
MOVES = {
    "horovod_allgather": "collective::test_allgather",
    "horovod_allgather_variable_size": "collective::test_allgather",
    "horovod_allgather_async_fused": _UNDER_WAY,
    "horovod_allgather_process_sets": _MOVE_IN_A_SET,
    "horovod_allgather_error": _MISMATCHES,
    "horovod_allgather_type_error": _MISMATCHES,
    "horovod_allgather_duplicate_name_error": _IN_USE,
    "horovod_allgather_grad": (_GRADIENTS, _SUM),
    "horovod_allgather_grad_process_sets": (_GRADIENTS, _SUM),
    "horovod_grouped_allgather": "collective::test_allgather",
    "horovod_grouped_allgather_process_sets": _MOVE_IN_A_SET,
    "horovod_grouped_allgather_grad": (_GRADIENTS, _SUM),
    "horovod_join_allgather": ("handle::test_join", "a rank that has joined gives no rows"),
    "horovod_broadcast": "collective::test_broadcast",
    "horovod_broadcast_inplace": "collective::test_broadcast",
    "horovod_broadcast_process_sets": _MOVE_IN_A_SET,
    "horovod_broadcast_error": _MISMATCHES,
    "horovod_broadcast_type_error": _MISMATCHES,
    "horovod_broadcast_rank_error": _MISMATCHES,
    "horovod_broadcast_duplicate_name_error": _IN_USE,
    "horovod_broadcast_grad": (_GRADIENTS, _SUM),
    "horovod_broadcast_grad_process_sets": (_GRADIENTS, _SUM),
    "horovod_join_broadcast": (
        "handle::test_what_a_rank_that_has_joined_cannot_take_part_in",
        "the rank that has joined gets the error, too, and joins again",
    ),
    "horovod_alltoall": "collective::test_alltoall",
    "horovod_alltoall_equal_split": "collective::test_alltoall",
    "horovod_alltoall_splits_on_gpu": ("collective::test_alltoall_with_splits", _HOST),
    "horovod_alltoall_process_sets": _MOVE_IN_A_SET,
    "horovod_alltoall_type_error": _MISMATCHES,
    "horovod_alltoall_equal_split_length_error": "collective::test_alltoall_with_splits",
    "horovod_alltoall_splits_error": "handle::test_wrong_arguments_of_one_rank_are_an_error_on_all",
    "horovod_alltoall_splits_type_error": "collective::test_alltoall_with_splits",
    "horovod_alltoall_rank_error": _MISMATCHES,
    "horovod_alltoall_grad": _GRADIENTS,
    "horovod_alltoall_equal_split_grad": _GRADIENTS,
    "horovod_alltoall_grad_process_sets": _GRADIENTS,
    "broadcast_object": "state::test_objects",
    "broadcast_object_process_sets": "state::test_objects",
    "allgather_object": "state::test_objects",
}
REDUCESCATTER = {
    "horovod_reducescatter": _SCATTER,
    "horovod_reducescatter_average": _SCATTER,
    "horovod_reducescatter_prescale": _FACTORS,
    "horovod_reducescatter_postscale": _FACTORS,
    "horovod_reducescatter_scalar_error": "collective::test_reducescatter",
    "horovod_reducescatter_adasum": "collective::test_reducescatter",
    "horovod_reducescatter_async_fused": _UNDER_WAY,
    "horovod_reducescatter_error": _MISMATCHES,
    "horovod_reducescatter_type_error": _MISMATCHES,
    "horovod_reducescatter_duplicate_name_error": _IN_USE,
    "horovod_reducescatter_grad": (_GRADIENTS, _SUM),
    "horovod_reducescatter_grad_average": (_GRADIENTS, _SUM),
    "horovod_reducescatter_process_sets": _REDUCE_IN_A_SET,
    "horovod_reducescatter_grad_process_sets": (_GRADIENTS, _SUM),
    "horovod_grouped_reducescatter": _SCATTER,
    "horovod_grouped_reducescatter_average": _SCATTER,
    "horovod_grouped_reducescatter_prescale": _FACTORS,
    "horovod_grouped_reducescatter_postscale": _FACTORS,
    "horovod_grouped_reducescatter_scalar_error": "collective::test_reducescatter",
    "horovod_grouped_reducescatter_process_sets": _REDUCE_IN_A_SET,
    "horovod_grouped_reducescatter_grad": (_GRADIENTS, _SUM),
}
TRAINING = {
    "broadcast_state": "state::test_every_optimizer_resumes_on_the_root",
    "broadcast_state_gpu": ("state::test_a_default_device_changes_nothing", _HOST),
    "broadcast_state_options": "state::test_every_optimizer_resumes_on_the_root",
    "broadcast_state_no_grad": (
        "state::test_a_parameter_without_a_gradient",
        "no step is taken to make a state, so no parameter gets a gradient",
    ),
    "force_allreduce": "optimizer::test_a_parameter_that_one_rank_does_not_use",
    "model_parallelism": ("optimizer::test_parity_with_one_process", _HOST),
    "delta_optimizer": "optimizer::test_adasum_of_the_same_changes_is_one_change",
    "duplicate_names": "optimizer::test_arguments_that_cannot_be",
    "dynamic_requires_grad": "optimizer::test_gradients_that_are_turned_on_and_off",
    "gradient_clipping": "optimizer::test_clipping_between_synchronize_and_step",
    "synchronize_step_warning": (
        "optimizer::test_a_step_after_synchronize_reduces_twice",
        "the warning is one of the logger tfdist, as all others",
    ),
    "no_named_parameters": "optimizer::test_parity_with_one_process",
    "missing_named_parameters": "optimizer::test_arguments_that_cannot_be",
    "horovod_sync_batch_norm": "sync_batch_norm::test_training",
    "optimizer_no_named_parameters": (
        "optimizer::test_parity_with_one_process",
        "the parameters are numbered through all groups, without `_parameter_names`",
    ),
    "sparse_embeddings": "optimizer::test_sparse_adam",
    "optimizer_process_sets": "optimizer::test_an_optimizer_in_a_set",
}
ADASUM = {
    "orthogonal": "collective::test_adasum_of_equal_and_orthogonal_tensors",
    "parallel": "collective::test_adasum_of_parallel_tensors",
    "stability": "collective::test_adasum_of_parallel_tensors",
    "stability_2": "collective::test_adasum_of_parallel_tensors",
}
TIMELINE = {
    "timeline": (
        "test_process.py::test_a_timeline_of_the_whole_job",
        "each rank has a file of its own, and there are no negotiations in it",
    ),
}
ELASTIC = {
    "elastic_state": "elastic::test_restore_goes_back_to_the_last_commit",
    "elastic_sampler": "elastic::test_a_sampler_goes_back_to_the_last_commit",
}
LEDGER = {
    f"{file}: {name}": place if isinstance(place, tuple) else (place, "")
    for file, names in (
        ("test_torch", WORLD | ALLREDUCE | MOVES | REDUCESCATTER | TRAINING),
        ("test_adasum_pytorch", ADASUM),
        ("test_timeline", TIMELINE),
        ("test_torch_elastic", ELASTIC),
    )
    for name, place in names.items()
}


@pytest.mark.parametrize("name", LEDGER)
def test_place_is_there(name):
    place, reason = LEDGER[name]
    file, _, test = place.partition("::")
    path = HERE / (file if file.endswith(".py") else f"ranks/{file}_on_ranks.py")
    assert re.search(rf"^def {test}\(", path.read_text(), re.MULTILINE), place
    assert not reason or len(reason.split()) > 3


def test_counts_are_those_of_horovod():
    """115 tests of collectives and training, 4 of Adasum, 1 of the timeline and 2 of elastic training."""
    assert len(LEDGER) == 115 + 4 + 1 + 2
