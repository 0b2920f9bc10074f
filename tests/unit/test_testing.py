"""Inputs with exact sums in every dtype, and how `run_ranks` names a function and reads what the ranks left."""

import json
import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.errors import ConfigError
from tfdist.testing import (
    RankError,
    assert_equal,
    expected_average,
    expected_max,
    expected_min,
    expected_sum,
    rank_job,
    run_ranks,
    summable,
    worker,
)
from tfdist.testing import verifiable_input as inputs

DTYPES = sorted(inputs._LIMITS)
FLOATS = ["bfloat16", "float16", "float32", "float64"]
SHAPE = (7, 31)


def add_one(number):
    """A function at the top level of a file."""
    return number + 1


class Nested:
    @staticmethod
    def double(number):
        return 2 * number


def rank_and(number):
    return [tfdist.rank(), tfdist.size(), number]


def fail_on_last():
    if tfdist.rank() == tfdist.size() - 1:
        raise ZeroDivisionError("no reason")
    tfdist.barrier(name="never left")


def wait_for_ever():
    signal.pause()


class TestInputs:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("size", [1, 2, 3, 8, 256])
    def test_sum_in_the_dtype_itself_is_exact_in_any_order(self, dtype, size):
        """Adding in the dtype, forwards and backwards, rounds nowhere."""
        kind = inputs._dtype(dtype)
        for ranks in (range(size), reversed(range(size))):
            total = np.zeros(SHAPE, kind)
            for rank in ranks:
                total = (total + summable(SHAPE, dtype, rank)).astype(kind)
            assert np.array_equal(total, expected_sum(SHAPE, dtype, size))

    @pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
    def test_sum_of_all_ranks_is_representable(self, dtype):
        exact = sum(summable(SHAPE, dtype, rank).astype(np.int64) for rank in range(256))
        assert np.array_equal(expected_sum(SHAPE, dtype, 256).astype(np.int64), exact)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_ranks_and_seeds_differ(self, dtype):
        by_rank = [summable(SHAPE, dtype, rank).tobytes() for rank in range(8)]
        assert len(set(by_rank)) == 8
        assert summable(SHAPE, dtype, 3, seed=1).tobytes() != by_rank[3]
        assert summable(SHAPE, dtype, 3).tobytes() == by_rank[3]

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_rank_that_is_lost_shows_in_the_sum(self, dtype):
        total = expected_sum(SHAPE, dtype, 4)
        for lost in range(4):
            rest = sum(summable(SHAPE, dtype, rank).astype(np.int64) for rank in range(4) if rank != lost)
            assert not np.array_equal(rest.astype(total.dtype), total)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("size", [1, 2, 4, 256])
    def test_average_is_exact_for_powers_of_two(self, dtype, size):
        average = expected_average(SHAPE, dtype, size)
        assert np.array_equal(average.astype(np.float64) * size, expected_sum(SHAPE, dtype, size).astype(np.float64))

    def test_average_of_three_is_rounded_once(self):
        exact = expected_sum(SHAPE, "float64", 3) / 3
        assert np.array_equal(expected_average(SHAPE, "float32", 3), exact.astype(np.float32))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_extremes(self, dtype):
        values = np.stack([summable(SHAPE, dtype, rank) for rank in range(5)])
        assert np.array_equal(expected_min(SHAPE, dtype, 5), values.min(axis=0))
        assert np.array_equal(expected_max(SHAPE, dtype, 5), values.max(axis=0))

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3, 4)])
    def test_shape_and_dtype(self, shape):
        array = summable(shape, tf.bfloat16, 1)
        assert array.shape == shape
        assert array.dtype == ml_dtypes.bfloat16
        assert summable(shape, np.float16, 1).dtype == np.float16
        assert expected_sum(shape, "int8", 2).shape == shape

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: summable((2,), "complex64", 0), "complex64"),
            (lambda: summable((2,), "no dtype", 0), "no dtype"),
            (lambda: summable((2,), "int8", 256), "0 to 255"),
            (lambda: summable((2,), "int8", -1), "0 to 255"),
            (lambda: expected_sum((2,), "int8", 257), "1 to 256"),
            (lambda: expected_max((2,), "int8", 0), "1 to 256"),
            (lambda: expected_average((2,), "int32", 2), "floating"),
        ],
    )
    def test_refused(self, call, text):
        with pytest.raises(ConfigError, match=text):
            call()


class TestEquality:
    @pytest.mark.parametrize("shape", [(), (2, 3), (0, 4)])
    @pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool"])
    def test_equal(self, dtype, shape):
        values = np.ones(shape, dtype)
        assert_equal(tf.constant(values), values)

    @pytest.mark.parametrize(
        ("received", "text"),
        [
            (np.zeros(3, "float64"), "received float64, expected float32"),
            (np.zeros((1, 3), "float32"), r"received shape \(1, 3\), expected \(3,\)"),
            (np.array([0, 1e-7, 0], "float32"), r"received \[0\.e\+00 1\.e-07 0\.e\+00\], expected \[0\. 0\. 0\.\]"),
        ],
    )
    def test_difference_is_named(self, received, text):
        with pytest.raises(AssertionError, match=text):
            assert_equal(received, np.zeros(3, "float32"))


class TestNames:
    @pytest.mark.parametrize("function", [add_one, Nested.double])
    def test_function_is_found_again_by_its_file(self, function):
        call = rank_job._describe(function, (3,))
        found = worker.find("no_such_module", call["file"], call["qualname"])
        assert found(*call["args"]) == function(3)
        assert found is not function

    def test_function_is_found_again_by_its_module(self):
        call = rank_job._describe(json.dumps, ())
        assert worker.find(call["module"], call["file"], call["qualname"]) is json.dumps

    def test_script_that_is_main_is_imported_under_its_own_name(self, tmp_path):
        script = tmp_path / "some_script.py"
        script.write_text("NAME = __name__\n\n\ndef name():\n    return NAME\n")
        assert worker.find("__main__", str(script), "name")() == "some_script"

    def test_module_of_the_same_name_elsewhere_is_not_taken_for_it(self, tmp_path):
        script = tmp_path / "json.py"
        script.write_text("def dumps():\n    return 'mine'\n")
        before = json
        try:
            assert worker.find("json", str(script), "dumps")() == "mine"
        finally:
            worker.sys.modules["json"] = before

    def test_module_whose_own_import_is_missing_says_so(self, tmp_path, monkeypatch):
        (tmp_path / "needs_more.py").write_text("import no_such_module_at_all\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
            worker.find("needs_more", str(tmp_path / "needs_more.py"), "name")

    @pytest.mark.parametrize("function", [lambda: 0, len, np.array, "name"], ids=["lambda", "builtin", "c", "text"])
    def test_function_without_a_name_is_refused(self, function):
        with pytest.raises(ConfigError, match="top level of a file"):
            run_ranks(2, function)

    def test_local_function_is_refused(self):
        def local():
            return 0

        with pytest.raises(ConfigError, match="top level of a file"):
            run_ranks(2, local)

    def test_argument_that_is_no_json_is_refused(self):
        with pytest.raises(ConfigError, match=r"arguments of add_one .* set"):
            run_ranks(2, add_one, {1})

    @pytest.mark.parametrize("n", [0, -1, 1.5, "2", True])
    def test_wrong_number_of_ranks(self, n):
        with pytest.raises(ConfigError, match="number of ranks"):
            run_ranks(n, add_one, 1)

    def test_rank_of_another_job_is_refused(self, monkeypatch):
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="rank of a running job"):
            run_ranks(2, add_one, 1)


class TestJobs:
    """Real ranks; each job takes seconds to start."""

    def test_results_come_by_rank(self):
        assert run_ranks(2, rank_and, 7, timeout_seconds=120) == [[0, 2, 7], [1, 2, 7]]

    def test_they_run_here_whatever_the_folder_or_a_cluster_says(self, tmp_path, monkeypatch):
        (tmp_path / "tfdist.yaml").write_text("hosts: [nowhere.invalid:1]\ntimeline-filename: run\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "nowhere.invalid")
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")
        assert run_ranks(1, rank_and, 7, timeout_seconds=60) == [[0, 1, 7]]
        assert [path.name for path in tmp_path.iterdir()] == ["tfdist.yaml"]

    def test_failure_names_rank_and_traceback(self):
        with pytest.raises(
            RankError, match=r"fail_on_last failed on rank 1 of 2:\nTraceback[\s\S]*no reason"
        ) as caught:
            run_ranks(2, fail_on_last, timeout_seconds=120)
        assert caught.value.rank == 1

    def test_timeout_ends_the_job(self):
        """Whatever it leaves behind would fail the session."""
        with pytest.raises(RankError, match=r"did not finish on ranks \[0, 1\] of 2 within 8 s"):
            run_ranks(2, wait_for_ever, timeout_seconds=8)


class TestRecords:
    def test_arrays_and_tensors_come_back_as_lists(self):
        value = {"a": np.arange(3), "b": tf.constant([1.5]), "c": np.float32(2), "d": (1, None, "x")}
        text = json.dumps(value, default=worker.as_json)
        assert json.loads(text) == {"a": [0, 1, 2], "b": [1.5], "c": 2.0, "d": [1, None, "x"]}

    def test_result_that_is_no_json(self):
        with pytest.raises(TypeError, match="received object"):
            json.dumps(object(), default=worker.as_json)

    def test_first_failure_in_time_is_the_cause(self):
        records = [
            {"traceback": "lost my peer", "time": 7.5},
            {"result": 1},
            {"traceback": "division by zero", "time": 7.25},
        ]
        with pytest.raises(RankError, match=r"f failed on rank 2 of 3:\ndivision by zero") as caught:
            rank_job._raise_first_failure("f", records)
        assert caught.value.rank == 2
        rank_job._raise_first_failure("f", [{"result": 1}, {}])

    def test_missing_record_is_empty(self, tmp_path):
        assert rank_job._read(Path(tmp_path) / "rank0.json") == {}
