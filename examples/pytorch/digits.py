r"""Trains a small convolutional network of PyTorch on digits that it draws, on one process or on many.

    python examples/pytorch/digits.py                       # one process
    tfdistrun -np 2 python examples/pytorch/digits.py       # two
    CODE=$PWD/examples EXTRA_PACKAGES=torch COMMAND="python pytorch/digits.py" \
        docker compose -f compose/train.yaml up --build --exit-code-from launcher    # two containers

It needs PyTorch (`pip install '.[torch]'` in the clone), neither TensorFlow nor Keras. It ends with the
accuracy on 500 digits that it has not trained on: 0.9 or more, on any number of ranks.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import torch
from torch.nn import functional

import tfdist.torch as hvd

# Rows of 3 pixels, from the top.
GLYPHS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717")


def draw_digits(count, seed):
    """Digits of 5 x 3 pixels, twice as large and somewhere in 16 x 16 pixels of noise."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=random)
    rows = torch.tensor([[int(row) for row in glyph] for glyph in GLYPHS])
    glyphs = ((rows[..., None] >> torch.tensor([2, 1, 0])) & 1).float()
    glyphs = glyphs.repeat_interleave(2, 1).repeat_interleave(2, 2)
    images = 0.3 * torch.randn(count, 1, 16, 16, generator=random)
    for image, label in zip(images, labels, strict=True):
        top, left = (int(torch.randint(limit, (1,), generator=random)) for limit in (7, 11))
        image[0, top : top + 10, left : left + 6] += glyphs[label]
    return images, labels


def build_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        hvd.SyncBatchNorm(16),  # <-- normalises over the batches of all ranks
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--global-batch", type=int, default=64, help="images per step on all processes together")
    options = parser.parse_args()

    hvd.init()  # <--
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(*draw_digits(2000, seed=1))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)  # <--
    loader = torch.utils.data.DataLoader(data, options.global_batch // hvd.size(), sampler=sampler)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # <--
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # <--
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # <-- matters after a resume from a checkpoint

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        loss = hvd.allreduce(loss.detach(), name="loss")  # <-- the average of the ranks
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}")

    model.eval()
    images, labels = draw_digits(500, seed=2)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    if hvd.rank() == 0:
        print(f"validation accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
