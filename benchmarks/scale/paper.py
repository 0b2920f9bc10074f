"""Writes the steps of the networks in Horovod's paper beside this file: gradients from Keras, times from publications.

    python benchmarks/scale/paper.py

How much the GPUs of one job differ was not published. It is the one number chosen here: such that the step of Inception
V3, simulated with the schedule of that time (one ring through all GPUs), has the throughput on 16 GPUs that was
published. The other eight published figures are not used by it, only compared with.
"""

from dataclasses import replace
from pathlib import Path

from tfdist.command.bench.measure.request import Record
from tfdist.command.bench.scale import scale_cluster, scale_prediction, scale_record, scale_step
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_prediction import Manner, Plan
from tfdist.command.bench.scale.scale_step import Published, Step
from tfdist.command.bench.train import train
from tfdist.native import library

HERE = Path(__file__).resolve().parent
BATCH = 64
# Horovod's default, HOROVOD_FUSION_THRESHOLD, at that time.
THRESHOLD = 64 << 20
OF_16 = (
    "horovod/horovod pull request 44 (2017), README.md: 4 servers with 4 Pascal GPUs each, RoCE-capable 25 Gbit/s, "
    "batch size 64, RDMA Horovod, allreduce on GPU with NCCL"
)
OF_128 = (
    "README.md of Horovod in late 2017: 32 servers with 4 Pascal GPUs each, RoCE-capable 25 Gbit/s, as a percentage"
)
OF_512 = "arXiv:1802.05799 and Horovod's docs/benchmarks.rst: 128 servers with 4 Pascal GPUs each, as a percentage"
# File, network, pixels (tf_cnn_benchmarks, default_image_size), images/s of one GPU and of 16 (OF_16), and the
# efficiency of 128 and of 512.
NETWORKS = (
    ("resnet101", "ResNet101", 224, 119.4, 1746.2, 0.90, 0.90),
    ("inception_v3", "InceptionV3", 299, 134.4, 2022.6, 0.90, 0.90),
    ("vgg16", "VGG16", 224, 130.9, 1787.4, 0.79, 0.68),
)
CHOSEN_BY = "InceptionV3"


def deviation(step: Step, plan: Plan, cluster: Cluster, manner: Manner, published: Published) -> float:
    """The relative deviation with which the simulation has the published efficiency; 0 if it is lower even so."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        made = scale_prediction.predict(replace(step, deviation=middle), plan, cluster, published.gpus, manner)
        low, high = (middle, high) if made.efficiency > published.efficiency else (low, middle)
    return low


def step(name: str, pixels: int, rate: float, published: tuple[Published, ...]) -> Step:
    """The step of one GPU at this rate."""
    options = Record(name, pixels, BATCH, rate, steps=0, warmup=0, threads=1, output=HERE)
    made = scale_record.shared_out(options, train.build(options), rate)
    sources = made.sources | {"throughput": f"{OF_16}: baseline single-GPU", "image_size": "tf_cnn_benchmarks"}
    return replace(made, published=published, sources=sources)


def main() -> None:
    cluster = scale_cluster.read(HERE / "horovod_paper.json")
    steps = {}
    for file, name, pixels, rate, of_16, *percentages in NETWORKS:
        published = (
            Published(16, round(of_16 / 16 / rate, 4), OF_16),
            *(Published(*found) for found in zip((128, 512), percentages, (OF_128, OF_512), strict=True)),
        )
        steps[file] = step(name, pixels, rate, published)
    (chosen,) = (each for each in steps.values() if each.model == CHOSEN_BY)
    plan = library.plan_buckets([chosen.dtype] * len(chosen.gradients), chosen.gradients, THRESHOLD)
    found = round(deviation(chosen, plan, cluster, Manner(schedule="flat"), chosen.published[0]), 4)
    why = f"assumed: with it {CHOSEN_BY} has its published efficiency on 16 GPUs in a flat ring; see paper.py"
    for file, each in steps.items():
        path = HERE / f"{file}.json"
        scale_step.write(path, replace(each, deviation=found, sources=each.sources | {"relative_deviation": why}))
        print(
            f"{path.name}: {len(each.gradients)} gradients, {sum(each.gradients) / 1e6:.1f} MB, deviation {found:.2%}"
        )


if __name__ == "__main__":
    main()
