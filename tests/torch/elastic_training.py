"""The training of the tests of elastic jobs, and how it loses ranks.

elastic_training.py VICTIMS  "RANK:STEP:HOW,...": that rank is killed "before" the step, in its "backward" pass after a
                             bucket was started, or "after" it and before its commit; it "hangs" or "fails" before it.
                             Or it "waits" there for a new rank.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import tfdist.torch as hvd
from tfdist.torch.collective import handle
from tfdist.world import runtime

EPOCHS, ROWS, BATCH = 2, 48, 2
SECONDS = 60


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def make_rows():
    torch.manual_seed(7)
    return torch.randn(ROWS, 4).double(), torch.randn(ROWS, 2).double()


def take_step(model, optimizer, rows, data, look=lambda loss: None):
    """Gradients are removed after the step: one that was interrupted must leave none to the next.

    `look` is called between the backward pass and the step.
    """
    samples, targets = data
    loss = torch.nn.functional.mse_loss(model(samples[rows]), targets[rows])
    loss.backward()
    look(loss.detach())
    optimizer.step()
    optimizer.zero_grad()


class Victim:
    """Has this rank lost as VICTIMS says."""

    def __init__(self, victims):
        chosen = [victim.split(":") for victim in victims.split(",") if victim]
        self._steps = {how: int(step) for rank, step, how in chosen if int(rank) == hvd.rank()}

    def is_lost(self, step, how):
        return self._steps.get(how) == step

    def at(self, step, moment):
        if self.is_lost(step, moment):
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "before" and self.is_lost(step, "hangs"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if moment == "before" and self.is_lost(step, "fails"):
            raise RuntimeError("fails here")
        if moment == "before" and self.is_lost(step, "waits"):
            Path("hosts.new").write_text("localhost:3")
            Path("hosts.new").replace("hosts")  # who looks in between sees some
            end = time.monotonic() + SECONDS
            while not runtime.meets() and time.monotonic() < end:
                pass


def main():
    hvd.init()
    own, victim = os.getpid(), Victim(sys.argv[1])
    data = make_rows()
    model = make_model(hvd.rank())
    optimizer = make_optimizer(model)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), groups=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    sampler = hvd.elastic.ElasticSampler(range(ROWS), seed=5)
    loader = torch.utils.data.DataLoader(range(ROWS), batch_size=BATCH, sampler=sampler)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, step=0)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: victim.at(state.step, "backward"))
    calls = []
    state.register_reset_callbacks([lambda: calls.append(hvd.size())])

    @hvd.elastic.run
    def train(state):
        small = torch.nn.Linear(1, 1, bias=False)  # newcomers make fewer of its optimizers
        torch.nn.init.ones_(small.weight)
        other = hvd.DistributedOptimizer(torch.optim.SGD(small.parameters(), lr=0.1))
        while state.epoch < EPOCHS:
            for number, rows in enumerate(loader):
                victim.at(state.step, "before")
                with Path(f"steps-{own}").open("a") as file:
                    numbers = (state.step, time.monotonic_ns(), state.epoch, hvd.size(), *rows.tolist())
                    file.write(f"{' '.join(map(str, numbers))}\n")
                small(torch.ones(1)).backward()
                other.step()
                take_step(model, optimizer, rows, data, lambda loss: hvd.allreduce(loss, name="loss"))
                scheduler.step()
                victim.at(state.step, "after")
                state.sampler.record_batch(number, BATCH)
                state.step += 1
                count = hvd.allreduce_async(torch.ones(1), name="count", op=hvd.Sum)  # under way at the commit
                state.commit()
                assert hvd.synchronize(count).item() == hvd.size()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    train(state)
    assert os.getpid() == own and not handle._pending  # those of interrupted steps are gone
    torch.save(dict(model.state_dict()), f"weights-{own}")
    print("ended", hvd.size(), calls)


if __name__ == "__main__":
    main()
