"""Predictions of recorded steps on a described cluster as a table, files and a picture. It starts no ranks.

Only the plan of the buckets comes from the library, which imports TensorFlow; all else is arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tfdist import config
from tfdist.command.bench.measure import record, size, table
from tfdist.command.bench.measure.request import Scale
from tfdist.command.bench.scale import scale_cluster, scale_plot, scale_prediction, scale_step
from tfdist.command.bench.scale.scale_cluster import Cluster
from tfdist.command.bench.scale.scale_prediction import Manner, Plan
from tfdist.command.bench.scale.scale_step import Step
from tfdist.native import library

# The plan of tensors with these dtypes and bytes, up to so many bytes a bucket.
Planner = Callable[[Sequence[str], Sequence[int], int], Plan]

HEAD = "GPUs,hosts,buckets,step ms,computing ms,communication ms,of it exposed ms,images/s,efficiency".split(",")


def run(options: Scale) -> None:
    """Prints a table for each step and manner, and writes what was asked for."""
    steps = [scale_step.read(path) for path in options.step]
    cluster = scale_cluster.read(options.cluster)
    threshold = config.read().fusion_threshold if options.threshold is None else options.threshold
    rows = predictions(steps, cluster, options, threshold, library.plan_buckets)
    print(f"tfdist bench scale: {cluster.name}, buckets of {size.show(threshold)}")
    for title, group in itertools.groupby(rows, scale_plot.label):
        print(f"\n{title}{'' if options.overlap else ', without overlap'}")
        print(_table(list(group)))
    if any(row["hosts"] > cluster.hosts for row in rows):
        print(f"\n* : more than the {cluster.hosts} hosts that were described, as if its network grew with them")
    if options.csv is not None:
        record.write_csv(options.csv, rows)
    if options.json is not None:
        document = {"benchmark": "scale", "options": options, "threshold_bytes": threshold, "cluster": cluster}
        record.write_json(options.json, document | {"steps": steps, "rows": rows})
    if options.plot is not None:
        scale_plot.write(options.plot, rows, cluster.name)


def predictions(
    steps: Sequence[Step], cluster: Cluster, options: Scale, threshold: int, planner: Planner
) -> list[dict[str, Any]]:
    """A row for each step, compression, schedule and number of GPUs, in this order."""
    rows = []
    for step, compression in itertools.product(steps, options.compressions):
        # By the bytes that gradients have in memory, as `tfdist.training.gradients` plans them.
        plan = planner([step.dtype] * len(step.gradients), step.gradients, threshold)
        published = {item.gpus: item.efficiency for item in step.published}
        for schedule, gpus in itertools.product(options.schedules, options.gpus or cluster.counts()):
            manner = Manner(compression, schedule, options.overlap)
            made = scale_prediction.predict(step, plan, cluster, gpus, manner)
            rows.append(
                {
                    "model": step.model,
                    "image_size": step.image_size,
                    "batch_size": step.batch_size,
                    "compression": compression,
                    "schedule": schedule,
                    "overlap": options.overlap,
                    "gpus": gpus,
                    "hosts": made.hosts,
                    "described": made.hosts <= cluster.hosts,
                    "buckets": len(plan),
                    "step_ms": made.step_s * 1e3,
                    "computing_ms": made.compute_s * 1e3,
                    "communication_ms": made.communication_s * 1e3,
                    "exposed_ms": made.exposed_s * 1e3,
                    "images_per_second": made.images_per_second,
                    "efficiency": made.efficiency,
                    "published_efficiency": published.get(gpus),
                }
            )
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """With a column for what others measured, where there is such a figure."""
    compared = any(row["published_efficiency"] is not None for row in rows)
    return table.aligned([*HEAD, *(["published"] if compared else [])], [_cells(row, compared) for row in rows])


def _cells(row: dict[str, Any], compared: bool) -> list[str]:
    cells = [f"{row['gpus']}{'' if row['described'] else ' *'}", str(row["hosts"]), str(row["buckets"])]
    cells += [f"{row[name]:.1f}" for name in ("step_ms", "computing_ms", "communication_ms", "exposed_ms")]
    cells += [f"{row['images_per_second']:.0f}", _percent(row["efficiency"])]
    return [*cells, *([_percent(row["published_efficiency"])] if compared else [])]


def _percent(efficiency: float | None) -> str:
    return "" if efficiency is None else f"{100 * efficiency:.1f} %"
