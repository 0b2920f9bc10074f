"""The parts that `shard` deals out, seen from one process that plays each rank in turn."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.input import outline, shard

SIZES = (1, 2, 3, 4)
UNKNOWN = tf.data.UNKNOWN_CARDINALITY
INFINITE = tf.data.INFINITE_CARDINALITY


def parts(dataset, size, remainder="drop"):
    return [shard.shard_elements(dataset, rank, size, remainder) for rank in range(size)]


def listed(dataset):
    return [element.numpy().tolist() for element in dataset]


def samples(batches):
    return [sample for batch in batches for sample in batch]


def of_unknown_length(dataset):
    return dataset.filter(lambda *_: True)


def described(dataset, **changes):
    """What one rank would tell the others, changed as if another rank had told it."""
    return {**shard.asdict(shard._describe_dataset(dataset)), **changes}


class TestDrop:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [12, 24, 48])
    def test_rank_gets_every_nth_batch(self, rows, size):
        batches = tf.data.Dataset.range(rows).batch(3)
        everything = listed(batches)
        rounds = len(everything) // size
        for rank, part in enumerate(parts(batches, size)):
            assert listed(part) == everything[rank : rounds * size : size]

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [19, 20, 25, 29, 30])
    @pytest.mark.parametrize("unknown", [False, True])
    def test_all_ranks_get_full_batches_and_as_many(self, rows, size, unknown):
        dataset = tf.data.Dataset.range(rows)
        if unknown:
            dataset = of_unknown_length(dataset)
        found = [listed(part) for part in parts(dataset.batch(4), size)]
        assert {len(part) for part in found} == {rows // 4 // size}
        assert {len(batch) for part in found for batch in part} == {4}

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [16, 19, 20, 29])
    def test_number_of_steps_is_known_where_it_can_be(self, rows, size):
        for part in parts(tf.data.Dataset.range(rows).batch(4), size):
            assert int(part.cardinality()) == rows // 4 // size == len(listed(part))

    def test_unknown_length_stays_and_incomplete_round_is_dropped(self):
        dataset = of_unknown_length(tf.data.Dataset.range(11))
        found = parts(dataset, 3)
        assert [listed(part) for part in found] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
        assert int(found[0].cardinality()) == UNKNOWN

    def test_endless_dataset_stays_endless(self):
        for rank, part in enumerate(parts(tf.data.Dataset.range(5).repeat(), 2)):
            assert int(part.cardinality()) == INFINITE
            assert listed(part.take(4)) == [[0, 2, 4, 1], [1, 3, 0, 2]][rank]

    def test_short_batches_of_a_repeated_epoch_are_left_out(self):
        """Epochs of 4, 4 and 2 rows: dropping whole rounds would lose full batches, or with 2 batches never end."""
        dataset = tf.data.Dataset.range(10).batch(4).repeat()
        first, second = parts(dataset, 2)
        assert int(first.cardinality()) == INFINITE
        assert listed(first.take(3)) == [[0, 1, 2, 3]] * 3
        assert listed(second.take(3)) == [[4, 5, 6, 7]] * 3

    def test_steps_of_a_repeated_epoch_are_counted(self):
        for part in parts(tf.data.Dataset.range(10).batch(4).repeat(3), 2):
            assert int(part.cardinality()) == 3
            assert [len(batch) for batch in listed(part)] == [4, 4, 4]

    def test_batches_enlarged_by_map_are_compared_with_the_first(self):
        dataset = tf.data.Dataset.range(11).batch(3).map(lambda x: tf.concat([x, x], 0)).prefetch(1)
        for rank, part in enumerate(parts(dataset, 3)):
            assert listed(part) == [[3 * rank, 3 * rank + 1, 3 * rank + 2] * 2]
            assert int(part.cardinality()) == 1

    def test_batches_shuffled_after_batching(self):
        found = []
        for rank in range(3):
            dataset = tf.data.Dataset.range(11).batch(3).shuffle(10, seed=3)
            found.append(listed(shard.shard_elements(dataset, rank, 3)))
        assert sorted(samples(samples(found))) == list(range(9))

    def test_batches_shuffled_and_mapped_are_refused(self):
        dataset = tf.data.Dataset.range(11).batch(3).map(lambda x: x + 1).shuffle(10, seed=3)
        with pytest.raises(ConfigError, match="drop_remainder=True"):
            parts(dataset, 3)

    def test_padded_batches(self):
        dataset = tf.data.Dataset.range(1, 8).map(lambda x: tf.repeat(x, x)).padded_batch(2)
        first, second, third = (listed(part) for part in parts(dataset, 3))
        assert first == [[[1, 0], [2, 2]]]
        assert second == [[[3, 3, 3, 0], [4, 4, 4, 4]]]
        assert third == [[[5, 5, 5, 5, 5, 0], [6, 6, 6, 6, 6, 6]]]

    def test_ragged_batches(self):
        dataset = tf.data.Dataset.range(7).map(tf.range).ragged_batch(3)
        assert len(list(shard.shard_elements(dataset, 1, 2))) == 1

    def test_samples_of_different_size_are_no_batches(self):
        """Images of unequal height are all kept: only `.batch` makes the first dimension a batch size."""
        dataset = tf.data.Dataset.range(1, 7).map(lambda x: tf.repeat(x, x))
        first, second = (listed(part) for part in parts(dataset, 2))
        assert [len(sample) for sample in first] == [1, 3, 5]
        assert [len(sample) for sample in second] == [2, 4, 6]

    def test_zipped_batches(self):
        x = tf.data.Dataset.range(7).batch(2)
        zipped = tf.data.Dataset.zip((x, x.map(lambda value: -value)))
        for part in parts(tf.data.Dataset.zip((x, x)), 3):
            assert [len(a) for a, _ in part] == [2]
        assert len(list(shard.shard_elements(zipped, 0, 3))) == 1

    def test_dictionaries_and_tuples_keep_their_structure(self):
        dataset = tf.data.Dataset.from_tensor_slices(({"a": np.arange(9), "b": np.arange(9.0)}, np.arange(9) % 3))
        for source in (
            dataset.batch(2),
            dataset.batch(2).map(lambda x, y: (x, y)),
            of_unknown_length(dataset).batch(2),
        ):
            for part in parts(source, 2):
                assert part.element_spec == source.element_spec
                assert [int(tf.size(y)) for _, y in part] == [2, 2]

    def test_second_epoch_reshuffles_and_ranks_stay_disjoint(self):
        epochs = []
        ranks = [
            shard.shard_elements(tf.data.Dataset.range(12).shuffle(12, seed=7).batch(2), rank, 3) for rank in range(3)
        ]
        for _ in range(2):
            epochs.append([samples(listed(part)) for part in ranks])
            assert sorted(samples(epochs[-1])) == list(range(12))
        assert epochs[0] != epochs[1]

    def test_too_few_batches(self):
        with pytest.raises(ConfigError, match="found 2 full batches or samples; 3 are needed"):
            shard.shard_elements(tf.data.Dataset.range(11).batch(4), 0, 3)

    def test_data_are_read_once(self):
        calls = []

        def generate():
            calls.append("opened")
            for value in range(9):
                calls.append(value)
                yield value

        dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))
        assert listed(shard.shard_elements(dataset.batch(2), 0, 2)) == [[0, 1], [4, 5]]
        assert calls == ["opened", *range(9)]


class TestPad:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [1, 5, 12, 13])
    @pytest.mark.parametrize("unknown", [False, True])
    def test_nobody_is_lost_and_the_first_count_twice(self, rows, size, unknown):
        dataset = tf.data.Dataset.range(rows)
        if unknown:
            dataset = of_unknown_length(dataset)
        rounds = -(-rows // size)
        wanted = [index % rows for index in range(rounds * size)]
        for rank, part in enumerate(parts(dataset, size, "pad")):
            assert listed(part) == wanted[rank::size]
            assert int(part.cardinality()) == (UNKNOWN if unknown else rounds)

    def test_short_last_batch_is_kept(self):
        found = [listed(part) for part in parts(tf.data.Dataset.range(8).batch(3), 2, "pad")]
        assert found == [[[0, 1, 2], [6, 7]], [[3, 4, 5], [0, 1, 2]]]

    def test_padding_comes_from_the_same_shuffled_epoch(self):
        """A second reading would be in another order, and would put the ranks out of step in the next epoch."""
        ranks = [
            shard.shard_elements(tf.data.Dataset.range(10).shuffle(10, seed=1), rank, 4, "pad") for rank in range(4)
        ]
        for _ in range(2):
            epoch = [listed(part) for part in ranks]
            in_order = [epoch[rank][step] for step in range(3) for rank in range(4)]
            assert sorted(in_order[:10]) == list(range(10))
            assert in_order[10:] == in_order[:2]

    @pytest.mark.parametrize(
        "dataset",
        [
            tf.data.Dataset.from_tensor_slices({"number": [1, 2, 3, 4], "text": ["x", "y", "z", "w"]}),
            tf.data.Dataset.range(4).map(lambda x: (x, tf.ragged.range(x))),
            tf.data.Dataset.range(4).map(lambda x: (tf.sparse.from_dense([x, x + 1]), {"a": x})),
            tf.data.Dataset.range(4).map(lambda x: (x,)),
        ],
        ids=["dict", "ragged", "sparse", "tuple_of_one"],
    )
    def test_structures(self, dataset):
        first = shard.shard_elements(dataset, 0, 3, "pad")
        second = shard.shard_elements(dataset, 1, 3, "pad")
        assert first.element_spec == dataset.element_spec
        assert len(list(first)) == len(list(second)) == 2
        assert outline.of_elements(second.skip(1)) == outline.of_elements(dataset.take(1))

    def test_endless(self):
        part = shard.shard_elements(tf.data.Dataset.range(5).repeat(), 1, 2, "pad")
        assert int(part.cardinality()) == INFINITE
        assert listed(part.take(3)) == [1, 3, 0]

    def test_nothing_to_pad_with(self):
        with pytest.raises(ConfigError, match="found 0 elements"):
            shard.shard_elements(tf.data.Dataset.range(0), 0, 2, "pad")


class TestRows:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [4, 12, 13])
    def test_drop(self, rows, size):
        x = np.arange(rows * 2).reshape(rows, 2)
        for rank in range(size):
            assert np.array_equal(shard.shard_rows(x, rank, size), x[: rows // size * size][rank::size])

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [1, 4, 12, 13])
    def test_pad(self, rows, size):
        x = np.arange(rows)
        wanted = [index % rows for index in range(-(-rows // size) * size)]
        for rank in range(size):
            assert shard.shard_rows(x, rank, size, "pad").tolist() == wanted[rank::size]

    @pytest.mark.parametrize("remainder", ["drop", "pad"])
    def test_types_and_structure_are_kept(self, remainder):
        arrays = ({"a": np.arange(5, dtype=np.int8), "b": tf.range(5)}, [np.ones((5, 2), np.float16)])
        (inputs, (ones,)) = shard.shard_rows(arrays, 1, 2, remainder)
        assert inputs["a"].dtype == np.int8
        assert isinstance(inputs["b"], tf.Tensor)
        assert np.array_equal(inputs["a"], inputs["b"].numpy())
        assert ones.dtype == np.float16
        assert ones.shape[1] == 2

    def test_table(self):
        import pandas

        table = pandas.DataFrame({"a": range(5)}, index=list("vwxyz"))
        assert shard.shard_rows(table, 0, 2, "pad")["a"].tolist() == [0, 2, 4]
        assert shard.shard_rows(table, 1, 2)["a"].tolist() == [1, 3]

    @pytest.mark.parametrize(
        ("arrays", "text"),
        [
            (np.arange(1), "found 1 rows; 2 are needed"),
            ((np.arange(3), np.arange(4)), r"received \[3, 4\] rows"),
            (np.float32(1), "without dimensions"),
            ("name", "received str"),
            ([1, 2], "received int"),
            ((), "number of rows"),
            (iter([1]), "from_generator"),
        ],
    )
    def test_refused(self, arrays, text):
        with pytest.raises(ConfigError, match=text):
            shard.shard_rows(arrays, 0, 2)


class TestOrder:
    @pytest.fixture(autouse=True)
    def _no_global_seed(self):
        tf.random.set_seed(None)
        yield
        tf.random.set_seed(None)

    def test_same_pipeline_is_no_problem(self):
        dataset = tf.data.Dataset.range(9).shuffle(9, seed=1).batch(2)
        assert shard._order_problem([described(dataset), described(dataset)]) == ""

    def test_unseeded_shuffle_is_named_if_first_elements_agree(self):
        dataset = tf.data.Dataset.range(9).shuffle(9).batch(2).prefetch(1)
        text = shard._order_problem([described(dataset), described(dataset)])
        assert ".shuffle(9, seed=1)" in text
        assert "twice" in text

    def test_seed_that_differs_by_rank(self):
        told = [described(tf.data.Dataset.range(9).shuffle(9, seed=1 + rank)) for rank in range(3)]
        assert "a different seed" in shard._order_problem(told)

    def test_global_seed_that_differs_by_rank(self):
        told = []
        for rank in range(2):
            tf.random.set_seed(rank + 1)
            told.append(described(tf.data.Dataset.range(9).shuffle(9, seed=1)))
        assert "set_random_seed" in shard._order_problem(told)

    def test_global_seed_is_enough(self):
        told = []
        for _ in range(2):
            tf.random.set_seed(5)
            told.append(described(tf.data.Dataset.range(9).shuffle(9)))
        assert shard._order_problem(told) == ""

    def test_random_augmentation_is_no_problem(self):
        def noisy(x):
            return tf.cast(x, tf.float32) + tf.random.uniform([])

        told = [described(tf.data.Dataset.range(9).map(noisy).batch(2)) for _ in range(2)]
        assert shard._order_problem(told) == ""

    def test_sources_that_differ(self):
        told = [described(tf.data.Dataset.from_tensor_slices([rank, 5, 6])) for rank in range(2)]
        assert "first elements" in shard._order_problem(told)

    def test_generators_that_differ(self):
        def generator(seed):
            return lambda: iter(np.random.default_rng(seed).normal(size=3))

        signature = tf.TensorSpec([], tf.float64)
        told = [
            described(tf.data.Dataset.from_generator(generator(rank), output_signature=signature)) for rank in range(2)
        ]
        assert "first elements" in shard._order_problem(told)

    @pytest.mark.parametrize("how", ["map", "options"])
    def test_unordered_results(self, how):
        dataset = tf.data.Dataset.range(9)
        if how == "map":
            dataset = dataset.map(lambda x: x + 1, num_parallel_calls=2, deterministic=False)
        else:
            options = tf.data.Options()
            options.deterministic = False
            dataset = dataset.map(lambda x: x + 1, num_parallel_calls=2).with_options(options)
        assert "deterministic=False" in shard._order_problem([described(dataset)] * 2)

    def test_arrays_split_without_a_seed(self):
        told = [shard.asdict(shard._describe_arrays(np.arange(9) + rank)) for rank in range(2)]
        assert "random_state" in shard._order_problem(told)
        assert shard._order_problem(told[:1] * 2) == ""

    def test_looking_fills_no_shuffle_buffer_and_no_cache(self):
        drawn = []

        def generate():
            for value in range(1000):
                drawn.append(value)
                yield value

        dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))
        shard._describe_dataset(dataset.shuffle(1000, seed=1).cache().batch(10))
        assert len(drawn) < 10

    def test_same_seed_gives_the_same_order_in_a_new_pipeline(self):
        """What resuming depends on: a new process that draws and drops k batches goes on with batch k."""

        def epoch(skip=0):
            dataset = tf.data.Dataset.range(20).shuffle(20, seed=4).batch(2)
            return listed(shard.shard_elements(dataset, 1, 2).skip(skip))

        assert epoch(skip=2) == epoch()[2:]


class TestFiles:
    @pytest.fixture
    def names(self, tmp_path):
        """Four files of 3, 4, 5 and 6 records `file-record`."""
        names = []
        for file in range(4):
            names.append(str(tmp_path / f"part{file}.tfrecord"))
            with tf.io.TFRecordWriter(names[-1]) as writer:
                for record in range(3 + file):
                    writer.write(f"{file}-{record}".encode())
        return names

    def files_in(self, dataset, size, rank):
        part = shard.pipeline.shard_files(dataset, size, rank)
        return {record.decode()[0] for batch in part.take(20) for record in batch.numpy()}

    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_every_file_goes_to_one_rank_after_a_shuffle(self, names, tmp_path, size):
        def dataset():
            found = tf.data.Dataset.list_files(str(tmp_path / "*.tfrecord"))
            return found.interleave(tf.data.TFRecordDataset).shuffle(8).repeat().batch(2, drop_remainder=True)

        seen = [self.files_in(dataset(), size, rank) for rank in range(size)]
        assert sorted("".join("".join(sorted(files)) for files in seen)) == ["0", "1", "2", "3"]

    def test_what_by_file_needs(self, names):
        records = tf.data.TFRecordDataset(names)
        assert "repeat()" in shard._why_not_by_file(records.batch(2))
        assert "drop_remainder" in shard._why_not_by_file(records.batch(2).repeat())
        assert shard._why_not_by_file(records.batch(2, drop_remainder=True).repeat()) == ""
        assert shard._why_not_by_file(records.repeat().batch(2).prefetch(1)) == ""

    def test_no_files_to_deal_out(self):
        with pytest.raises(tf.errors.NotFoundError):
            shard.pipeline.shard_files(tf.data.Dataset.range(9).repeat(), 2, 0)


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"remainder": "keep"}, "'drop', 'pad', 'join'; received 'keep'"),
            ({"policy": "row"}, "'auto', 'file', 'data', 'off'; received 'row'"),
            ({"policy": "off", "remainder": "pad"}, "no effect"),
            ({"policy": "file"}, "received arrays"),
            ({"policy": None}, "'auto', 'file', 'data', 'off'; received None"),
            ({"policy": np.arange(4)}, r"received ndarray as policy. Write tfdist.shard\(\(X, Y\)\)"),
            ({"policy": [1, 2]}, r"received list as policy. Write tfdist.shard\(\(X, Y\)\)"),
            ({"remainder": tf.zeros([4])}, r"received EagerTensor as remainder. Write tfdist.shard\(\(X, Y\)\)"),
        ],
    )
    def test_refused_before_anything_starts(self, arguments, text):
        with pytest.raises(ConfigError, match=text):
            shard.shard(np.arange(4), **arguments)

    def test_difference_between_ranks_names_each_value(self):
        with pytest.raises(ConfigError, match="rank 0: 5, rank 1: 6"):
            shard._require_same("number of rows", [5, 6])
