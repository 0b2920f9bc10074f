r"""Trains with PyTorch where each rank has another number of batches: a rank without data left waits in `join()`.

    python examples/pytorch/unequal.py                      # one process
    tfdistrun -np 2 python examples/pytorch/unequal.py      # two
    CODE=$PWD/examples EXTRA_PACKAGES=torch COMMAND="python pytorch/unequal.py" \
        docker compose -f compose/train.yaml up --build --exit-code-from launcher    # two containers

It needs PyTorch (`pip install '.[torch]'` in the clone), neither TensorFlow nor Keras. The model learns the
weights of a line, 2 and -1. The script ends with the steps of each rank, the weights, which are right
within 0.05, and the rank that joined last.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import torch
from torch.nn import functional

import tfdist.torch as hvd


def batches_of(rank, batch_size):
    """As if each rank had files of its own: 40 batches on rank 0, 20 more on each rank after it."""
    random = torch.Generator().manual_seed(rank)
    for _ in range(40 + 20 * rank):
        x = torch.randn(batch_size, 2, generator=random)
        y = x @ torch.tensor([2.0, -1.0]) + 0.01 * torch.randn(batch_size, generator=random)
        yield x, y


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per step on each process")
    options = parser.parse_args()

    hvd.init()  # <--
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # <--
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # <--

    steps = 0
    for x, y in batches_of(hvd.rank(), options.batch_size):
        optimizer.zero_grad()
        functional.mse_loss(model(x)[:, 0], y).backward()
        optimizer.step()  # a rank that has joined counts as zeros in the average of the gradients
        steps += 1

    # The steps after a rank has joined are those of the others, so the last one has seen all of them.
    last = hvd.join()  # <--
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)  # <--
    hvd.broadcast_optimizer_state(optimizer, root_rank=last)  # <-- with momentum or Adam, for one more epoch

    steps = hvd.allgather_object(steps)
    weights = [round(weight, 3) for weight in model.weight[0].tolist()]
    same = len(set(hvd.allgather_object(str(weights)))) == 1
    if hvd.rank() == 0:
        print(f"steps: {steps}; rank {last} joined last; weights: {weights}, the same on all ranks: {same}")


if __name__ == "__main__":
    main()
