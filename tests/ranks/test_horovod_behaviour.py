"""What the tests of Horovod 0.28 for TensorFlow and Keras check holds here too, or differs by decision.

tests/unit/test_horovod_ledger.py has each of those tests, and the row that checks it here in eager execution, in a
function and in a session, or the test of another file that does. The rows run on a GPU if there is one.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.tensorflow as hvd
from tfdist.ops.graph import session_graph
from tfdist.world import process_sets
from tfdist.world.session import session as world_session

HERE = Path(__file__).parent
MODES = ("eager", "function", "session")
INTEGERS, FLOATS = ("uint8", "int8", "int32", "int64"), ("float16", "float32", "float64")
NUMBERS = INTEGERS + FLOATS
ANY = (*NUMBERS, "uint16", "int16", "bool")
DIFFERS = tf.errors.FailedPreconditionError
WRONG = tf.errors.InvalidArgumentError
FACTOR = 1.5


def executed(mode, build):
    """The values of the tensors that `build` makes."""
    if mode == "eager":
        return tf.nest.map_structure(np.array, build())
    if mode == "function":
        return tf.nest.map_structure(np.array, tf.function(build)())
    with tf.Graph().as_default():
        made = build()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(made)


def values(dtype, dim, rank, rows=None):
    """Different on each rank; their products among four ranks fit in any type."""
    shape = [rows or 4, *[3] * (dim - 1)]
    return ((np.arange(np.prod(shape)) + rank) % 3 + 1).reshape(shape).astype(dtype)


def mine(dtype, dim, rows=None):
    return tf.constant(values(dtype, dim, tfdist.rank(), rows))


def everywhere(dtype, dim, ranks, rows=None):
    return np.array([values(dtype, dim, rank, rows) for rank in ranks])


def cases(dtypes):
    return [(dtype, dim) for dtype in dtypes for dim in (1, 2, 3)]


def check_all(run, dtypes, call, expected, where=hvd.global_process_set):
    """One run of all dtypes and dimensions, which can be fused."""
    found = run(lambda: {f"{dtype}{dim}": call(mine(dtype, dim, 4 * where.size())) for dtype, dim in cases(dtypes)})
    for dtype, dim in cases(dtypes):
        result = found[f"{dtype}{dim}"]
        wanted = np.asarray(expected(everywhere(dtype, dim, where.ranks, 4 * where.size())))
        np.testing.assert_allclose(result, wanted.astype(dtype), rtol=1e-6, err_msg=f"{dtype}, {dim} dimensions")
        assert result.dtype == dtype


def average(inputs):
    return np.trunc(inputs.sum(0, dtype="float64") / len(inputs)) if inputs.dtype.kind in "iu" else inputs.mean(0)


def scaled(array):
    return np.trunc(array * FACTOR) if array.dtype.kind in "iu" else array * FACTOR


REDUCTIONS = {
    "sum": (hvd.Sum, lambda inputs: inputs.sum(0)),
    "average": (hvd.Average, average),
    "min": (hvd.Min, lambda inputs: inputs.min(0)),
    "max": (hvd.Max, lambda inputs: inputs.max(0)),
    "product": (hvd.Product, lambda inputs: inputs.prod(0)),
}


def reduces(name, grouped=False):
    op, expected = REDUCTIONS[name]

    def check(run, where=hvd.global_process_set):
        def call(x):
            if grouped:
                return hvd.grouped_allreduce([x * 0, x], op=op, process_set=where)[1]
            return hvd.allreduce(x, op=op, process_set=where)

        check_all(run, NUMBERS, call, expected, where)

    return check


def scales(prescaled, collective=lambda x, **arguments: hvd.allreduce(x, op=hvd.Sum, **arguments), part=lambda x: x):
    def check(run):
        if prescaled:
            check_all(
                run,
                NUMBERS,
                lambda x: collective(x, prescale_factor=FACTOR),
                lambda inputs: part(np.array([scaled(each) for each in inputs]).sum(0)),
            )
        else:
            check_all(
                run,
                NUMBERS,
                lambda x: collective(x, postscale_factor=FACTOR),
                lambda inputs: part(scaled(inputs.sum(0))),
            )

    return check


def slices_of(dtype, rank):
    """Rows `rank` and `rank + 1` of a table with a row more than there are ranks."""
    shape = tf.constant([tfdist.size() + 1, 3])
    return tf.IndexedSlices(tf.fill([2, 3], tf.cast(6, dtype)), tf.constant([rank, rank + 1]), shape)


def reduces_slices(divided, grouped=False, mixed=False):
    def check(run):
        n, op = tfdist.size(), hvd.Average if divided else hvd.Sum

        def build():
            found = {}
            for dtype in FLOATS if divided else NUMBERS:
                slices = slices_of(dtype, tfdist.rank())
                if not grouped:
                    found[dtype] = [tf.convert_to_tensor(hvd.allreduce(slices, op=op))]
                    continue
                dense = [tf.fill([3], tf.cast(6, dtype))] * mixed
                found[dtype] = list(map(tf.convert_to_tensor, hvd.grouped_allreduce([slices, *dense, slices], op=op)))
            return found

        share = n if divided else 1
        for dtype, results in run(build).items():
            rows = np.repeat([[6], *[[12]] * (n - 1), [6]], 3, axis=1).astype(dtype) / share
            for result in (results[0], results[-1]):
                np.testing.assert_allclose(result, rows, rtol=1e-3 if dtype == "float16" else 1e-6)
            if mixed:
                assert np.array_equal(results[1], np.full(3, 6 * n / share, dtype))

    return check


def refuses(kind, *calls):
    def check(run):
        for call in calls:
            with pytest.raises(kind):
                run(lambda call=call: call(tfdist.rank(), tfdist.size()))

    return check


def of_types(collective):
    return lambda rank, n: collective(tf.ones([2 * n], tf.int32 if rank % 2 == 0 else tf.float32))


def of_widths(collective):
    return lambda rank, n: collective(tf.ones([2 * n, 10 * (rank + 1), 3]))


def of_shapes(collective):
    return (
        lambda rank, n: collective(tf.ones([17 + rank] * 3)),
        lambda rank, n: collective(tf.ones([4, 6]) if rank else tf.ones([2, 2, 6])),
    )


def gradient(build, x, upstream=None):
    if session_graph.is_current():
        return tf.gradients(build(x), x, grad_ys=upstream)[0]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = build(x)
    return tape.gradient(y, x, output_gradients=upstream)


@contextlib.contextmanager
def gradients(chosen):
    before, world_session.gradients = world_session.gradients, chosen
    yield
    world_session.gradients = before


def differentiates(call, expected, chosen="exact", rows=None, upstream=None):
    """`expected`: the gradient, by rank and number of ranks; one number, or one for each row."""

    def check(run, where=hvd.global_process_set):
        place, n = where.rank(), where.size()
        with gradients(chosen):
            found = run(
                lambda: [
                    gradient(
                        lambda x: call(x, where),
                        mine(dtype, dim, rows(place, n) if rows else 4 * n),
                        upstream and [tf.constant(upstream(n, dtype, dim), dtype)],
                    )
                    for dtype, dim in cases(("float32", "float64"))
                ]
            )
        for each in found:
            assert np.array_equal(each, np.full_like(each, expected(place, n)))

    return check


def counts(rank, n):
    return (3, 2, 7, 4)[rank]


def by_rank(n, dtype, dim):
    """Rows of the result of an allgather that have the place of the rank they come from."""
    return np.concatenate([np.full([counts(rank, n), *[3] * (dim - 1)], rank, dtype) for rank in range(n)])


def gathers(ragged, grouped=False):
    def check(run, where=hvd.global_process_set):
        def rows(rank):
            return (17, 32, 81, 12)[rank] if ragged else 17

        def block(dtype, dim, rank):
            return np.full([rows(rank), *[3] * (dim - 1)], rank % 2 if dtype == "bool" else rank).astype(dtype)

        def call(x):
            if grouped:
                return hvd.grouped_allgather([x, x], process_set=where)[1]
            return hvd.allgather(x, process_set=where)

        found = run(lambda: {f"{t}{d}": call(tf.constant(block(t, d, tfdist.rank()))) for t, d in cases(ANY)})
        for dtype, dim in cases(ANY):
            expected = np.concatenate([block(dtype, dim, rank) for rank in where.ranks])
            assert np.array_equal(found[f"{dtype}{dim}"], expected)

    return check


def broadcasts(run, where=hvd.global_process_set):
    for root in where.ranks:
        check_all(
            run,
            ANY,
            lambda x, root=root: hvd.broadcast(x, root, process_set=where),
            lambda inputs, root=root: inputs[where.ranks.index(root)],
            where,
        )


def broadcasts_in_place(run):
    start = [np.full(shape, 1.0 + tfdist.rank(), "float32") for shape in ([4], [4, 3], [4, 3, 2])]
    if run.mode == "session":
        with tf.Graph().as_default():
            variables = [tf.compat.v1.get_variable(f"v{place}", initializer=each) for place, each in enumerate(start)]
            update = hvd.broadcast_variables(variables, root_rank=1)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(update)
                found = session.run([tf.identity(each) for each in variables])
    else:
        variables = [tf.Variable(each) for each in start]
        wrap = tf.function if run.mode == "function" else lambda f: f
        wrap(lambda: hvd.broadcast_(variables, 1))()
        found = [each.numpy() for each in variables]
    for each in found:
        assert np.array_equal(each, np.full_like(each, 2.0))


def splits_of(rank, n, silent=(), deaf=()):
    return [0 if rank in silent or target in deaf else rank + 1 for target in range(n)]


def exchanges(silent=(), deaf=(), given=True):
    """Rank r sends r + 1 rows of r to each; nobody sends to `deaf`, and `silent` send nothing."""

    def check(run, where=hvd.global_process_set):
        place, n = where.rank(), where.size()
        splits = splits_of(place, n, silent, deaf)
        dtypes = [dtype for dtype in ANY if dtype != "bool"]

        def call(dtype, dim):
            x = tf.fill([sum(splits), *[2] * (dim - 1)], tf.cast(place, dtype))
            if given:
                return hvd.alltoall(x, splits, process_set=where)
            return [hvd.alltoall(x, process_set=where), tf.constant(splits)]

        expected = [splits_of(rank, n, silent, deaf)[place] for rank in range(n)]
        found = run(lambda: {f"{t}{d}": list(call(t, d)) for t, d in cases(dtypes)})
        for (dtype, dim), (rows, received) in zip(cases(dtypes), found.values(), strict=True):
            wanted = np.repeat(np.arange(n), expected)
            assert np.array_equal(rows, np.broadcast_to(wanted.reshape([-1, *[1] * (dim - 1)]), rows.shape))
            assert len(rows) == sum(expected) and rows.dtype == dtype
            assert not given or list(received) == expected

    return check


def exchanges_nothing(run):
    found = run(lambda: [hvd.alltoall(tf.zeros([2 * tfdist.size(), 0], dtype)) for dtype in ANY if dtype != "bool"])
    assert {each.size for each in found} == {0}


def deals(name, uneven=False, grouped=False):
    op, expected = REDUCTIONS[name]

    def check(run, where=hvd.global_process_set):
        place, n = where.rank(), where.size()

        def call(x):
            if grouped:
                return hvd.grouped_reducescatter([x, x], op=op, process_set=where)[1]
            return hvd.reducescatter(x, op=op, process_set=where)

        if not uneven:
            check_all(run, NUMBERS, call, lambda inputs: np.array_split(expected(inputs), n)[place], where)
            return
        found = run(lambda: [call(mine(dtype, 1, 4 * n + n // 2)) for dtype in NUMBERS])
        for dtype, result in zip(NUMBERS, found, strict=True):
            whole = expected(everywhere(dtype, 1, where.ranks, 4 * n + n // 2))
            assert np.array_equal(result, np.array_split(whole, n)[place].astype(dtype))
            assert len(result) == (5 if place < n // 2 else 4)

    return check


def places(run):
    found = run(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])
    assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    assert (hvd.rank(), hvd.size()) == (tfdist.rank(), tfdist.size())


def compresses(run):
    for dtype in ANY:
        ones = tf.cast(tf.ones([5]), dtype)
        small, context = hvd.Compression.fp16.compress(ones)
        assert small.dtype == ("float16" if dtype in FLOATS else dtype)
        assert np.array_equal(hvd.Compression.fp16.decompress(small, context), ones)
    found = run(lambda: hvd.allreduce(mine("float32", 2), op=hvd.Sum, compression=hvd.Compression.fp16))
    assert np.array_equal(found, everywhere("float32", 2, range(tfdist.size())).sum(0))


def in_sets(check):
    """The check in the ranks' own set: that of the even ranks, or that of the odd ones."""

    def of_sets(run):
        for where in SETS:
            if where.included():
                check(run, where=where)

    return of_sets


SETS = []


def sizes_of_sets(run):
    found = run(lambda: [[hvd.size_op(s.process_set_id), hvd.process_set_included_op(s.process_set_id)] for s in SETS])
    assert [list(map(int, each)) for each in found] == [[each.size(), int(each.included())] for each in SETS]


def refuses_other_sets(run):
    (other,) = [where for where in SETS if not where.included()]
    with pytest.raises(WRONG):
        run(lambda: hvd.allreduce(tf.ones([2]), process_set=other))
    with pytest.raises(ValueError, match="is not in use"):
        run(lambda: hvd.allreduce(tf.ones([2]), process_set=hvd.ProcessSet([0])))


def tells_objects(run):
    where = next(where for where in SETS if where.included())
    for group in (hvd.global_process_set, where):
        given = {"hello": 123, 0: [1, tfdist.rank()]}
        root = group.ranks[0]
        expected = {"hello": 123, 0: [1, root]}
        assert hvd.broadcast_object(given, root, process_set=group) == expected
        assert hvd.broadcast_object_fn(root, process_set=group)(given) == expected
        assert hvd.allgather_object(given, process_set=group) == [{"hello": 123, 0: [1, rank]} for rank in group.ranks]


def variables_in_a_set(run):
    (where,) = [where for where in SETS if where.included()]

    def broadcast(variable):
        return hvd.broadcast_variables([variable], where.ranks[0], process_set=where)

    if run.mode == "session":
        with tf.Graph().as_default():
            variable = tf.compat.v1.get_variable("v", initializer=tf.constant([tfdist.rank()]))
            update = broadcast(variable)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(update)
                found = session.run(tf.identity(variable))
    else:
        variable = tf.Variable([tfdist.rank()])
        (tf.function(broadcast) if run.mode == "function" else broadcast)(variable)
        found = variable.numpy()
    assert found == [where.ranks[0]]


def trains_in_a_set(run):
    """By a tape, or by an optimizer of TensorFlow 1 in a session; who is not in the set keeps its gradient."""
    where, own = SETS[0], 1.0 + tfdist.rank()
    mean = np.mean([1.0 + rank for rank in where.ranks])
    if run.mode == "session":
        with tf.Graph().as_default():
            variable = tf.compat.v1.get_variable("v", initializer=own)
            plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            optimizer = hvd.DistributedOptimizer(plain, process_set=where)
            ((found, _),) = optimizer.compute_gradients(variable * variable)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                found = session.run(found)
    else:
        x = tf.Variable(own)

        def build():
            with tf.GradientTape() as tape:
                y = x * x
            return hvd.DistributedGradientTape(tape, process_set=where).gradient(y, x)

        found = run(build)
    assert found == 2 * (mean if where.included() else own)


def global_variables(run):
    if run.mode == "session":
        run(lambda: hvd.broadcast_global_variables(root_rank=0) or tf.constant(0))
    else:
        with pytest.raises(RuntimeError):
            run(lambda: hvd.broadcast_global_variables(root_rank=0))


def sum_of(x, where):
    return hvd.allreduce(x, op=hvd.Sum, process_set=where)


def grouped_sum_of(x, where):
    return hvd.grouped_allreduce([x, x * 0], op=hvd.Sum, process_set=where)[0]


def rows_of(x, where):
    return hvd.allgather(x, process_set=where)


def rows_of_sum(op):
    return lambda x, where: hvd.reducescatter(x, op=op, process_set=where)


def from_second(x, where):
    return hvd.broadcast(x, where.ranks[-1], process_set=where)


def exchanged(x, where):
    splits = [where.rank() + 1] * where.size()
    return hvd.alltoall(x, splits, process_set=where)[0]


def is_last(place, n):
    return float(place == n - 1)


_SUM_N = differentiates(sum_of, lambda place, n: n)
_RAGGED = {"rows": counts, "upstream": by_rank}
ROWS = {
    "places": places,
    **{name: reduces(name) for name in REDUCTIONS},
    **{f"grouped {name}": reduces(name, grouped=True) for name in REDUCTIONS},
    "prescale": scales(True),
    "postscale": scales(False),
    "slices": reduces_slices(False),
    "slices, average": reduces_slices(True),
    "grouped slices": reduces_slices(False, grouped=True),
    "grouped slices, average": reduces_slices(True, grouped=True),
    "slices beside others": reduces_slices(False, grouped=True, mixed=True),
    "slices beside others, average": reduces_slices(True, grouped=True, mixed=True),
    "slices, other reductions": refuses(
        NotImplementedError,
        *(
            lambda rank, n, op=op, group=group: (
                hvd.grouped_allreduce([slices_of("float32", rank), tf.ones([2])], op=op)
                if group
                else hvd.allreduce(slices_of("float32", rank), op=op)
            )
            for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum)
            for group in (False, True)
        ),
    ),
    "allreduce differs": refuses(DIFFERS, *of_shapes(hvd.allreduce), of_types(lambda x: hvd.allreduce(x, op=hvd.Sum))),
    "gradient of sum": _SUM_N,
    "gradient of average": differentiates(
        lambda x, where: hvd.allreduce(x, process_set=where), lambda place, n: 1, rows=None
    ),
    "gradient of grouped sum": differentiates(grouped_sum_of, lambda place, n: n),
    "allgather": gathers(False),
    "ragged allgather": gathers(True),
    "grouped allgather": gathers(False, grouped=True),
    "allgather differs": refuses(DIFFERS, of_widths(hvd.allgather), of_types(hvd.allgather)),
    "gradient of allgather": differentiates(rows_of, lambda place, n: n * place, **_RAGGED),
    "gradient of allgather of 0.28": differentiates(rows_of, lambda place, n: place, "0.28", **_RAGGED),
    "broadcast": broadcasts,
    "broadcast in place": broadcasts_in_place,
    "broadcast differs": refuses(
        DIFFERS,
        of_widths(lambda x: hvd.broadcast(x, 0)),
        of_types(lambda x: hvd.broadcast(x, 0)),
        lambda rank, n: hvd.broadcast(tf.ones([17, 17, 17]), rank),
    ),
    "gradient of broadcast": differentiates(from_second, lambda place, n: n * is_last(place, n)),
    "gradient of broadcast of 0.28": differentiates(from_second, is_last, "0.28"),
    "alltoall": exchanges(),
    "alltoall without splits": exchanges(given=False),
    "alltoall of nothing": exchanges_nothing,
    "alltoall, one sends nothing": exchanges(silent=(1,)),
    "alltoall, one receives nothing": exchanges(deaf=(0,)),
    "alltoall among some": exchanges(silent=(1,), deaf=(1,)),
    "alltoall differs": refuses(DIFFERS, of_types(hvd.alltoall), of_widths(hvd.alltoall)),
    "alltoall with wrong splits": refuses(
        WRONG,
        lambda rank, n: hvd.alltoall(tf.ones([n + 1])),
        lambda rank, n: hvd.alltoall(tf.ones([n - 1]), splits=[1] * n)[0],
    ),
    "gradient of alltoall": differentiates(exchanged, lambda place, n: 1, rows=lambda place, n: (place + 1) * n),
    "gradient of alltoall without splits": differentiates(
        lambda x, where: hvd.alltoall(x, process_set=where), lambda place, n: 1
    ),
    "global variables": global_variables,
    "compression": compresses,
    "reducescatter": deals("sum"),
    "reducescatter, average": deals("average"),
    "uneven reducescatter": deals("sum", uneven=True),
    "grouped reducescatter": deals("sum", grouped=True),
    "reducescatter, prescale": scales(
        True,
        lambda x, **arguments: hvd.reducescatter(x, op=hvd.Sum, **arguments),
        lambda whole: np.array_split(whole, tfdist.size())[tfdist.rank()],
    ),
    "reducescatter, postscale": scales(
        False,
        lambda x, **arguments: hvd.grouped_reducescatter([x], op=hvd.Sum, **arguments)[0],
        lambda whole: np.array_split(whole, tfdist.size())[tfdist.rank()],
    ),
    "reducescatter of a scalar": refuses(
        ValueError,
        lambda rank, n: hvd.reducescatter(tf.constant(1.0)),
        lambda rank, n: hvd.grouped_reducescatter([tf.ones([2, 1]), tf.constant(1.0)])[0],
    ),
    "reducescatter differs": refuses(DIFFERS, *of_shapes(hvd.reducescatter), of_types(hvd.reducescatter)),
    "gradient of reducescatter": differentiates(rows_of_sum(hvd.Sum), lambda place, n: 1),
    "gradient of reducescatter of 0.28": differentiates(rows_of_sum(hvd.Sum), lambda place, n: n, "0.28"),
    "gradient of its average of 0.28": differentiates(rows_of_sum(hvd.Average), lambda place, n: 1, "0.28"),
    "sizes of sets": sizes_of_sets,
    "sets of others": refuses_other_sets,
    "objects": tells_objects,
    "variables in a set": variables_in_a_set,
    "training in a set": trains_in_a_set,
    "sum in a set": in_sets(reduces("sum")),
    "grouped sum in a set": in_sets(reduces("sum", grouped=True)),
    "gradient of sum in a set": in_sets(_SUM_N),
    "allgather in a set": in_sets(gathers(False)),
    "gradient of allgather in a set": in_sets(differentiates(rows_of, lambda place, n: place, "0.28", **_RAGGED)),
    "broadcast in a set": in_sets(broadcasts),
    "gradient of broadcast in a set": in_sets(differentiates(from_second, is_last, "0.28")),
    "alltoall in a set": in_sets(exchanges()),
    "gradient of alltoall in a set": in_sets(
        differentiates(exchanged, lambda place, n: 1, rows=lambda place, n: (place + 1) * n)
    ),
    "reducescatter in a set": in_sets(deals("sum")),
    "average of reducescatter in a set": in_sets(deals("average", grouped=True)),
    "gradient of reducescatter in a set": in_sets(
        differentiates(rows_of_sum(hvd.Sum), lambda place, n: n, chosen="0.28")
    ),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", ROWS)
def test_row(world, row, mode):
    def run(build):
        return executed(mode, build)

    run.mode = mode
    process_sets.start("dynamic", None)
    SETS[:] = [tfdist.add_process_set(list(range(first, world, 2))) for first in (0, 1)]
    try:
        ROWS[row](run)
    finally:
        for where in SETS:
            tfdist.remove_process_set(where)
        process_sets.start(None, None)
