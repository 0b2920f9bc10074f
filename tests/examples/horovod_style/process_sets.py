"""Two groups of ranks in one job: each fits a line of its own, and all ranks compare in the end."""

import json

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

STEPS, RATE = 200, 0.3

hvd.init(process_sets="dynamic")

evens = hvd.add_process_set(range(0, hvd.size(), 2))
odds = hvd.add_process_set(range(1, hvd.size(), 2))
mine = evens if evens.included() else odds

# What the group has to find: slope and offset, with the same noise-free points on no two ranks.
truth = (2.0, -1.0) if mine is evens else (-3.0, 0.5)
x = tf.constant(np.random.default_rng(hvd.rank()).uniform(-1, 1, 64).astype("float32"))
y = truth[0] * x + truth[1]

line = tf.Variable(tf.random.normal([2]))
hvd.broadcast_variables([line], root_rank=mine.ranks[0], process_set=mine)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((line[0] * x + line[1] - y) ** 2)
    tape = hvd.DistributedGradientTape(tape, process_set=mine)
    line.assign_sub(RATE * tape.gradient(loss, [line])[0])
    return loss


for _ in range(STEPS):
    loss = step()

# In the group, then over all ranks.
group_sum = hvd.allreduce(tf.constant(10.0 ** mine.rank()), op=hvd.Sum, name="in the group", process_set=mine)
whole_sum = hvd.allreduce(tf.constant(10.0 ** hvd.rank()), op=hvd.Sum, name="over all")
lines = hvd.allgather(tf.expand_dims(line, 0), name="lines")
ranks_of_groups = hvd.allgather_object(mine.ranks, name="groups")

# The group is gone after this, and all ranks still work together.
for group in (evens, odds):
    hvd.remove_process_set(group)
left = hvd.allreduce(tf.constant(1), op=hvd.Sum, name="after the groups")

result = {
    "truth": truth,
    "loss": float(loss),
    "group_sum": float(group_sum),
    "whole_sum": float(whole_sum),
    "lines": lines.numpy().tolist(),
    "groups": ranks_of_groups,
    "left": int(left),
}
print("result", json.dumps(result), flush=True)
