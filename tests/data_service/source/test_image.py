"""Folders of images as datasets: labels by folder, pixels as written, each once on workers; bad files are named."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tfdist import data_service
from tfdist.data_service import from_images
from tfdist.errors import ConfigError

COUNTS = {"apple": 3, "pear": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each image is of one colour, which is its number; one lies deeper and one is a JPEG."""
    folder = tmp_path_factory.mktemp("images")
    number = 0
    for name, count in COUNTS.items():
        for index in range(count):
            path = folder / name / ("deeper" if index == 1 else "") / f"{index}.{'jpg' if index == 2 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = tf.fill([4, 6, 3], tf.constant(number, tf.uint8))
            encode = tf.io.encode_jpeg if index == 2 else tf.io.encode_png
            path.write_bytes(encode(image).numpy())
            number += 1
    (folder / "apple" / "notes.txt").write_text("not an image")
    (folder / ".hidden").mkdir()
    return folder


def read(dataset):
    return [
        (int(label), round(float(image[0, 0, 0])))
        for images, labels in dataset
        for image, label in zip(images, labels, strict=True)
    ]


EXPECTED = [(0, 0), (0, 2), (0, 1), (1, 3), (1, 5), (1, 6), (1, 4)]


def test_images_are_labelled_by_folder(folder):
    dataset = from_images(folder, (2, 3), batch_size=3)
    assert dataset.class_names == ["apple", "pear"]
    assert dataset.cardinality() == 3
    assert dataset.element_spec[0] == tf.TensorSpec([None, 2, 3, 3], tf.float32)
    assert sorted(read(dataset)) == sorted(EXPECTED)
    assert read(dataset) == read(dataset)


def test_grey_images_have_one_channel(folder):
    images, _ = next(iter(from_images(folder, (4, 6), batch_size=7, channels=1, drop_remainder=True)))
    assert images.shape == [7, 4, 6, 1]
    assert np.unique(np.round(images.numpy())).tolist() == list(range(7))


def test_shuffling_with_a_seed_repeats(folder):
    options = {"batch_size": 2, "shuffle": 4, "seed": 1}
    dataset = from_images(folder, (2, 2), **options)
    passes = [read(dataset) for _ in range(4)]
    again = from_images(folder, (2, 2), **options)
    assert [read(again) for _ in range(4)] == passes
    assert len({tuple(order) for order in passes}) > 1
    assert all(sorted(order) == sorted(EXPECTED) for order in passes)


def test_workers_decode_each_image_once(folder):
    dataset = from_images(folder, (2, 2), batch_size=2, shuffle=2, seed=1)
    with data_service.Dispatcher(data_service.DispatcherConfig()) as dispatcher:
        config = data_service.WorkerConfig(dispatcher.address)
        with data_service.Worker(config), data_service.Worker(config):
            counted = collections.Counter(read(data_service.distribute(dataset, dispatcher.address)))
    assert counted == collections.Counter(EXPECTED)


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.png").write_text("text")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a/b\.png is not a JPEG, PNG, GIF or BMP"):
        list(from_images(tmp_path, (2, 2), batch_size=1))


def test_a_folder_without_classes_or_images_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        from_images(tmp_path / "a", (2, 2), batch_size=1)
    with pytest.raises(ConfigError, match="has no subfolders"):
        from_images(tmp_path, (2, 2), batch_size=1)
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"a contains no file that ends in \.jpg"):
        from_images(tmp_path, (2, 2), batch_size=1)


@pytest.mark.parametrize(
    ("size", "options"),
    [((2,), {}), ((0, 2), {}), ((2, 2), {"channels": 2}), ((2, 2), {"shuffle": -1}), ((2, 2), {"batch_size": 0})],
)
def test_wrong_number_is_refused(folder, size, options):
    with pytest.raises(ConfigError, match=r"image_size must be \(height, width\)"):
        from_images(folder, size, **{"batch_size": 1, **options})
