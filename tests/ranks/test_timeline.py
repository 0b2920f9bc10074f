"""What each rank records of its collectives: names, bytes, phases that nest, clocks that agree."""

import importlib
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import trace_schema

import tfdist
from tfdist import errors
from tfdist.command.timeline import summary, trace_file
from tfdist.command.timeline.merge import merge
from tfdist.testing import summable

SIZES = pytest.mark.ranks(1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _stopped():
    yield
    tfdist.stop_timeline()


def recorded(folder, rank=None):
    """The timeline of a rank, of which every byte must be JSON."""
    path = folder / f"run.{tfdist.rank() if rank is None else rank}.json"
    assert trace_schema.problems(json.loads(path.read_text())) == []
    return trace_file.read(path)


def shapes_and_names():
    """Two tensors of 24 and 28 bytes, reduced under one name."""
    return [tf.constant(summable(shape, "float32", tfdist.rank())) for shape in ((2, 3), (7,))]


@SIZES
def test_calls_have_their_names_and_bytes(shared_tmp_path):
    tfdist.start_timeline(shared_tmp_path / "run.json")
    tfdist.grouped_allreduce(shapes_and_names(), op=tfdist.Sum, name="pair")
    tfdist.broadcast(tf.range(5, dtype=tf.int64), root_rank=tfdist.size() - 1, name="five")
    tfdist.allgather(tf.zeros((tfdist.rank() + 1, 2)), name="rows")
    tfdist.barrier(name="end")
    tfdist.stop_timeline()
    trace = recorded(shared_tmp_path)
    calls = [(e["name"], e["args"].get("bytes"), e["args"].get("dtype")) for e in trace.of("call")]
    assert calls == [
        ("allreduce pair", 52, "float32"),
        ("broadcast five", 40, "int64"),
        ("allgather rows", 8 * (tfdist.rank() + 1), "float32"),
        ("barrier end", None, None),
    ]
    first = trace.of("call")[0]["args"]
    assert first["tensor_count"] == len(first["tensors"]) == 2
    assert len(set(first["tensors"])) == 2
    assert (trace.rank, trace.size) == (tfdist.rank(), tfdist.size())


def record_large(folder, compression):
    """The timeline of two allreduces of 3.6 MB."""
    tensors = [tf.fill([300_000], float(tfdist.rank() + i)) for i in range(3)]
    kind = getattr(tfdist.Compression, compression)
    tfdist.start_timeline(folder / "run.json", mark_cycles=True)
    for _ in range(2):
        tfdist.grouped_allreduce(tensors, op=tfdist.Sum, name="large", compression=kind)
    tfdist.stop_timeline()
    return recorded(folder)


@SIZES
@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_phases_nest_in_buckets_and_these_in_calls(shared_tmp_path, compression):
    trace = record_large(shared_tmp_path, compression)
    calls, buckets, phases = trace.of("call"), trace.of("bucket"), trace.of("phase")
    assert trace_schema.nested(buckets, calls)
    assert trace_schema.nested(phases, calls)
    assert trace_schema.nested(trace.of("cycle"), calls)
    within = {e["name"] for e in phases if trace_schema.nested([e], buckets)}
    assert within - {"wait"} == {"pack", "reduce", "unpack"}
    ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in phases)
    assert all(one[1] <= other[0] + 1e-3 for one, other in itertools.pairwise(ends))


@SIZES
@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_buckets_have_the_bytes_of_their_call(shared_tmp_path, compression):
    trace = record_large(shared_tmp_path, compression)
    width = {"float32": 4, "float16": 2}
    calls = [e["args"] for e in trace.of("call")]
    assert len(calls) == len(trace.of("cycle")) == 2
    for call in calls:
        assert call["dtype"] == {"none": "float32", "fp16": "float16"}[compression]
        assert call["bytes"] == 900_000 * width[call["dtype"]]
        buckets = [e["args"] for e in trace.of("bucket") if e["args"]["call"] == call["call"]]
        assert sum(bucket["bytes"] for bucket in buckets) == call["bytes"]


@SIZES
def test_clocks_of_one_machine_agree_within_the_round_trip(shared_tmp_path):
    """The ranks here have one steady clock, so that what was measured must be 0 within its own bound."""
    tfdist.start_timeline(shared_tmp_path / "run.json")
    tfdist.stop_timeline()
    tfdist.barrier(name="files")
    first, own = recorded(shared_tmp_path, 0), recorded(shared_tmp_path)
    assert abs(own.to_unix_ns - first.to_unix_ns) <= own.round_trip_ns / 2 + 1
    assert (own.round_trip_ns == 0) == (tfdist.rank() == 0)


def record_barriers(folder, count):
    """The timelines of all ranks that have met so often."""
    tfdist.start_timeline(folder / "run.json")
    for number in range(count):
        tfdist.barrier(name=f"meet {number}")
    tfdist.stop_timeline()
    tfdist.barrier(name="files")
    return trace_file.read_all([folder / f"run.{rank}.json" for rank in range(tfdist.size())])


@SIZES
def test_merged_calls_of_all_ranks_overlap(shared_tmp_path):
    """A barrier ends on no rank before it has begun on all: so it is in the merged file, but for the clocks' error."""
    traces = record_barriers(shared_tmp_path, 3)
    events = merge(traces)["traceEvents"]
    assert trace_schema.problems(events) == []
    slack = max(trace.round_trip_ns for trace in traces) / 1000 + 1e-3
    for number in range(3):
        meetings = [e for e in events if e["name"] == f"barrier meet {number}"]
        assert {e["pid"] for e in meetings} == set(range(tfdist.size()))
        assert max(e["ts"] for e in meetings) <= min(e["ts"] + e["dur"] for e in meetings) + slack


@SIZES
def test_summary_has_every_call_of_every_rank(shared_tmp_path):
    shares = summary.summarize(record_barriers(shared_tmp_path, 4))
    assert [(share.rank, share.calls) for share in shares] == [(rank, 4) for rank in range(tfdist.size())]
    assert all(0 < share.wait <= share.wall for share in shares)


@pytest.mark.ranks(2, 3)
def test_a_fit_is_recorded_step_by_step(shared_tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(tfdist.rank()).normal(size=(32, 4)).astype("float32")
    callback = tfdist.callbacks.DataParallel()
    model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[callback])
    tfdist.start_timeline(shared_tmp_path / "run.json")
    model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[callback])
    tfdist.stop_timeline()
    parameter_bytes = 4 * model.count_params()
    steps = [e for e in recorded(shared_tmp_path).of("call") if e["args"].get("bytes") == parameter_bytes]
    assert len([e for e in steps if e["name"].startswith("allreduce")]) == 4
    names = steps[0]["args"]["tensors"]
    assert any("dense" in name and "kernel" in name for name in names), names


@pytest.mark.ranks(2, 3)
def test_a_start_on_some_ranks_only_is_a_mismatch_on_all(shared_tmp_path):
    path = shared_tmp_path / "run.json"
    with pytest.raises(errors.MismatchError, match="start_timeline"):
        tfdist.start_timeline(path) if tfdist.rank() == 0 else tfdist.barrier(name="elsewhere")
    tfdist.start_timeline(shared_tmp_path / "run.json")  # and all may start afterwards


@pytest.mark.ranks(1, 2)
def test_second_start_and_bad_path_are_refused_on_all_ranks(shared_tmp_path):
    name = "/proc/no/such/run.json" if tfdist.rank() == 0 else shared_tmp_path / "run.json"
    alone = tfdist.size() == 1
    begin = "" if alone else "start_timeline failed on some ranks: rank 0: "
    text = f"^{begin}the timeline '/proc/no/such/run.0.json' cannot be made: .* on a disk with free space[.]$"
    with pytest.raises(errors.ConfigError if alone else errors.MismatchError, match=text):
        tfdist.start_timeline(name)
    tfdist.start_timeline(shared_tmp_path / "run.json")
    with pytest.raises(errors.ConfigError, match=r"Call stop_timeline\(\) first"):
        tfdist.start_timeline(shared_tmp_path / "other.json")
    tfdist.stop_timeline()
    tfdist.stop_timeline()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("module", ["tfdist.keras", "tfdist.tensorflow"])
def test_horovods_names_record_too(shared_tmp_path, module):
    hvd = importlib.import_module(module)
    hvd.start_timeline(file_path=str(shared_tmp_path / "run.json"), mark_cycles=True)
    hvd.allreduce(tf.ones(3), name="ones")
    hvd.stop_timeline()
    trace = recorded(shared_tmp_path)
    assert [e["name"] for e in trace.of("call")] == ["allreduce ones"]
    assert len(trace.of("cycle")) == 1
