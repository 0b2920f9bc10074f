r"""Trains ResNet50 as on ImageNet: warm-up, a rate that falls in steps, gradients sent in 16 bits, and backups.

    python examples/vision/resnet50.py                           # one process
    tfdistrun -np 2 python examples/vision/resnet50.py           # two
    CODE=$PWD/examples COMMAND="python vision/resnet50.py --backup /checkpoints/resnet50" \
        docker compose -f compose/train.yaml up --exit-code-from launcher    # two containers

As it stands it takes a few steps with two blocks of the network on small images that it draws. All of it on 16 GPUs, as
in the paper of Goyal et al. (2017), on the images of ImageNet in a folder for each class:

    tfdistrun -np 16 -H a:8,b:8 python examples/vision/resnet50.py --images /shared/imagenet/train --classes 1000 \
        --blocks 3 4 6 3 --size 224 --batch-size 512 --rate 0.2 --warmup 5 --drops 30 60 80 --epochs 90 \
        --backup /shared/resnet50

Started again after a crash, or with a larger --epochs, it continues after the epoch of the newest backup, on any number
of ranks. It ends with the epochs that it has trained, the steps that there have been in all, and the rate.
The lines marked with <-- are what training on several processes takes.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfdist


def draw_images(size, classes, count=16):
    """Noise around a color for each class."""
    random = np.random.default_rng(1)
    labels = np.arange(count) % classes
    images = random.uniform(0, 255, (classes, 1, 1, 3))[labels] + random.normal(0, 30, (count, size, size, 3))
    return tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels)).shuffle(count, seed=1)


def load_images(folder, size):
    loader = keras.utils.image_dataset_from_directory
    return loader(folder, image_size=(size, size), crop_to_aspect_ratio=True, batch_size=None, shuffle=True, seed=1)


def normalized(x, filters, size, stride=1, gamma="ones"):
    x = keras.layers.Conv2D(filters, size, stride, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.BatchNormalization(gamma_initializer=gamma)(x)


def build_model(size, classes, blocks):
    inputs = keras.Input((size * 8 // 7, size * 8 // 7, 3))  # with a margin, for crops at random
    x = keras.layers.RandomFlip("horizontal")(keras.layers.RandomCrop(size, size)(inputs))
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(x)
    x = keras.layers.MaxPooling2D(3, 2, "same")(keras.layers.ReLU()(normalized(x, 64, 7, stride=2)))
    for stage, count in enumerate(blocks):
        for block in range(count):
            filters, stride = 64 * 2**stage, 2 if stage and not block else 1
            shortcut = x if block else normalized(x, 4 * filters, 1, stride)
            x = keras.layers.ReLU()(normalized(x, filters, 1))
            x = keras.layers.ReLU()(normalized(x, filters, 3, stride))
            x = keras.layers.ReLU()(shortcut + normalized(x, 4 * filters, 1, gamma="zeros"))  # begins as the shortcut
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", metavar="DIR", help="folder with a folder for each class; default: drawn images")
    parser.add_argument("--size", type=int, default=28, help="pixels of a side")
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 1], help="of each stage; ResNet50 has 3 4 6 3")
    parser.add_argument("--batch-size", type=int, default=8, help="images per step of all ranks together")
    parser.add_argument("--rate", type=float, default=0.01, help="for this batch size")
    parser.add_argument("--warmup", type=float, default=1, help="epochs in which the rate rises to this value")
    parser.add_argument("--drops", type=int, nargs="+", default=[2], help="epochs after which it falls to a tenth")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backup", default="resnet50-backup", metavar="DIR")
    known = parser.parse_args()

    tfdist.init()
    keras.utils.set_random_seed(1)
    size = known.size * 8 // 7
    images = load_images(known.images, size) if known.images else draw_images(size, known.classes)
    train = tfdist.shard(images, global_batch=known.batch_size).prefetch(2)  # <-- 1: this process's part
    boundaries = [len(train) * epoch - 1 for epoch in known.drops]  # the last step with the rate before
    rates = [known.rate * 0.1**number for number in range(len(boundaries) + 1)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
    model = build_model(known.size, known.classes, known.blocks)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True, weight_decay=5e-5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        tfdist.callbacks.DataParallel(compression="fp16", warmup_epochs=known.warmup),  # <-- 2: train together
        tfdist.callbacks.BackupAndRestore(known.backup, delete_checkpoint=False),  # written by rank 0
    ]
    history = model.fit(train, epochs=known.epochs, callbacks=callbacks, verbose=2)
    if tfdist.rank() == 0:
        trained = ", ".join(str(epoch + 1) for epoch in history.epoch) or "none"
        rate = float(model.optimizer.learning_rate)
        print(f"epochs of this run: {trained}; steps in all: {int(model.optimizer.iterations)}; rate: {rate:.4f}")


if __name__ == "__main__":
    main()
