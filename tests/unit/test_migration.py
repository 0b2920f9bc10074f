"""docs/migrating-from-horovod.md is true: every name of Horovod is in it once, and each is what its row says."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tfdist
from tfdist import facade

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "migrating-from-horovod.md"
STATES = ("same", "different", "not needed", "added")
# Public names of Horovod 0.28.1: those that its modules define or take in, without the standard library and TensorFlow;
# of the compute service those that it defines, of elastic training those that it has in `__all__`.
_BOTH = """
init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Compression elastic
DistributedOptimizer broadcast_global_variables allreduce allgather broadcast reducescatter
"""
HOROVOD = {
    "tfdist.tensorflow": _BOTH
    + """
Min Max Product is_homogeneous rank_op local_rank_op size_op local_size_op process_set_included_op grouped_allgather
grouped_allreduce grouped_reducescatter broadcast_ alltoall join allgather_object broadcast_object broadcast_object_fn
broadcast_variables SyncBatchNormalization DistributedGradientTape PartialDistributedGradientTape
BroadcastGlobalVariablesHook handle_average_backwards_compatibility check_num_rank_power_of_2 check_extension
gpu_available split_list vars_to_refs refs_to_vars LocalGradientAggregationHelper keras data compression functions
gradient_aggregation gradient_aggregation_eager mpi_ops sync_batch_norm util
""",
    "tfdist.keras": _BOTH + "PartialDistributedOptimizer load_model callbacks is_version_greater_equal_than",
    "tfdist.keras.callbacks": """
BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback LearningRateWarmupCallback
MetricAverageCallback
""",
    "tfdist.tensorflow.elastic": "TensorFlowKerasState TensorFlowState run",
    "tfdist.keras.elastic": "KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback run",
    "tfdist.tensorflow.data.compute_service": (
        "TfDataServiceConfig tf_data_service send_to_data_service compute_worker_fn"
    ),
    "tfdist": "run __version__",
}
DOORS = tuple(module for module in HOROVOD if module != "tfdist")


@dataclass(frozen=True)
class Row:
    """One name of a table."""

    module: str
    name: str
    state: str
    signature: str
    reason: str


def rows_of(text: str) -> list[Row]:
    rows = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        module = section.partition("\n")[0].rpartition(" -> ")[2]
        for line in section.splitlines():
            if line.startswith("| `"):
                cells = [cell.strip() for cell in line.strip("|").split("|")]
                name, state, signature, reason = cells
                rows.append(Row(module, name.strip("`"), state, signature.strip("`"), reason))
    return rows


ROWS = rows_of(GUIDE.read_text())
PRESENT = [row for row in ROWS if row.state in ("same", "different", "added")]
ABSENT = [row for row in ROWS if row.state == "not needed"]


def names_of(rows: list[Row], module: str) -> list[str]:
    return [row.name for row in rows if row.module == module]


def shown(value: Any) -> str:
    if isinstance(value, tfdist.Compression):
        return f"Compression.{value.name}"
    if isinstance(value, enum.Enum):
        return value.name.capitalize()
    return "global_process_set" if value is tfdist.global_process_set else repr(value)


def signature_of(thing: Any) -> str:
    """As the tables have it; empty for what is no function and no class to be made."""
    if not callable(thing) or isinstance(thing, enum.Enum) or thing is tfdist.Compression:
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = []
    for parameter in inspect.signature(thing).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={shown(parameter.default)}"
        words.append(marks.get(parameter.kind, "") + parameter.name + default)
    return f"({', '.join(words)})"


def label(row: Row) -> str:
    return f"{row.module}.{row.name}"


def test_states_are_known() -> None:
    assert {row.state for row in ROWS} == set(STATES)
    assert {row.module for row in ROWS} == set(HOROVOD)


@pytest.mark.parametrize("module", HOROVOD)
def test_every_name_of_horovod_has_one_row(module: str) -> None:
    listed = names_of(ROWS, module)
    assert len(listed) == len(set(listed))
    assert {row.name for row in ROWS if row.module == module and row.state != "added"} == set(HOROVOD[module].split())


@pytest.mark.parametrize("module", DOORS)
def test_every_public_name_has_a_row_and_the_other_way_round(module: str) -> None:
    assert sorted(names_of(PRESENT, module)) == sorted(importlib.import_module(module).__all__)


@pytest.mark.parametrize("row", PRESENT, ids=label)
def test_signature_is_that_of_the_table(row: Row) -> None:
    thing = getattr(importlib.import_module(row.module), row.name)
    assert row.signature == ("" if row.state == "added" else signature_of(thing))
    assert row.reason or row.state == "same"


@pytest.mark.parametrize("row", ABSENT, ids=label)
def test_a_name_that_is_not_there_says_why(row: Row) -> None:
    module = importlib.import_module(row.module)
    assert row.name not in module.__all__
    with pytest.raises(AttributeError) as raised:
        getattr(module, row.name)
    assert str(raised.value) == (
        f"module {row.module!r} has no attribute {row.name!r}: {row.reason}. See docs/{GUIDE.name}."
    )


def test_reasons_are_for_names_of_the_tables() -> None:
    assert set(facade._MISSING) == {row.name for row in ABSENT}


@pytest.mark.parametrize("module", ["tfdist.tensorflow", "tfdist.keras"])
def test_a_name_that_nobody_has_is_an_ordinary_error(module: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module '{module}' has no attribute 'allredude'$"):
        importlib.import_module(module).allredude  # noqa: B018  (the access is the test)


def test_reader_of_tables_notices() -> None:
    """What the tests above compare would be empty if the file were read wrongly."""
    (row,) = rows_of("## Names\n| `x` | same | | no |\n### a -> tfdist.keras\n\n| `f` | same | `(a, b=1)` | why |\n")
    assert row == Row("tfdist.keras", "f", "same", "(a, b=1)", "why")
    assert len(ROWS) > 120
    assert signature_of(lambda a, *b, c=tfdist.Sum, d=tfdist.Compression.none, **e: 0) == (
        "(a, *b, c=Sum, d=Compression.none, **e)"
    )
