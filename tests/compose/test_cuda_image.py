"""The image for CUDA without a GPU: nothing is missing but the driver. `make test-cuda-image` runs it."""

import json
import re
from pathlib import Path

import image_size
import pytest

pytestmark = pytest.mark.slice("cuda-image")
ROOT = Path(__file__).resolve().parents[2]
# Where NVIDIA's container runtime is the default, it would bring what is asked for in the image.
WITHOUT_GPU = ("--env", "NVIDIA_VISIBLE_DEVICES=void")
CONFINED = (*WITHOUT_GPU, *"--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges:true".split())
TENSORFLOW = """
import json, tensorflow as tf
build = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
print(json.dumps([tf.__version__, build["cuda_version"], build["cudnn_version"], [gpu.name for gpu in gpus]]))
"""
VERSIONS = """
import importlib.metadata, json
found = {each.name: each.version for each in importlib.metadata.distributions()}
print(json.dumps({name: version for name, version in found.items() if name.startswith("nvidia-")}))
"""
# What TensorFlow opens when it meets a GPU, and tfdist's NCCL and NVRTC.
LIBRARIES = (
    *("libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12", "libcudnn.so.9", "libcufft.so.11", "libcupti.so.12"),
    *("libcusolver.so.11", "libcusparse.so.12", "libnccl.so.2", "libnvrtc.so.12"),
)
LOAD = """
import ctypes, glob, sys
for name in sys.argv[1:]:
    (path,) = glob.glob(f"/opt/tfdist/lib/python3*/site-packages/nvidia/*/lib/{name}")
    ctypes.CDLL(path)
"""
# XLA compiles with it.
ASSEMBLER = "exec /opt/tfdist/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas --version"


@pytest.fixture(scope="module")
def image(build):
    return build("cuda")


@pytest.fixture(scope="module")
def packages(docker, image):
    """The versions of NVIDIA's packages in it."""
    return json.loads(docker.run(image, "python", "-c", VERSIONS))


@pytest.fixture(scope="module")
def doctor(docker, image):
    """Its state of the whole and its findings, with a read-only root."""
    told = json.loads(docker.run(image, "tfdist", "doctor", "--json", options=CONFINED))
    return told["state"], told["findings"]


def test_tensorflow_fits_the_cuda_there_and_sees_no_gpu(docker, image, packages, versions):
    version, cuda, cudnn, gpus = json.loads(docker.run(image, "python", "-c", TENSORFLOW, options=CONFINED))
    assert version == versions["TENSORFLOW_VERSION"]
    assert gpus == []
    assert packages["nvidia-cuda-runtime-cu12"].split(".")[0] == cuda.split(".")[0] == "12"
    assert packages["nvidia-cudnn-cu12"].split(".")[0] == cudnn.split(".")[0]


def test_the_libraries_that_a_gpu_needs_load_without_one(docker, image):
    docker.run(image, "python", "-c", LOAD, *LIBRARIES, options=CONFINED)
    assert "Cuda compilation tools, release 12." in docker.run(image, "bash", "-c", ASSEMBLER, options=CONFINED)


def test_doctor_misses_the_driver_alone(doctor):
    state, found = doctor
    assert state == "ok"
    assert {one["name"] for one in found if one["group"] == "software" and one["state"] != "ok"} == set()
    gpu, *others = (one for one in found if one["group"] == "GPU")
    assert "no working driver" in gpu["text"] and "docker run --gpus all" in gpu["remedy"]
    assert [(one["name"], one["state"]) for one in others] == [("NCCL", "ok"), ("NVRTC", "ok")]


@pytest.mark.parametrize(
    ("name", "file", "package"),
    [
        ("NCCL", "nccl/lib/libnccl.so.2", "nvidia-nccl-cu12"),
        ("NVRTC", "cuda_nvrtc/lib/libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12"),
    ],
)
def test_doctor_tells_version_and_path_of_a_library(doctor, packages, name, file, package):
    (text,) = (one["text"] for one in doctor[1] if one["name"] == name)
    version, path = re.fullmatch(r"(\S+) \((\S+)\)", text).groups()
    assert f"{packages[package]}.".startswith(f"{version}.")
    assert re.fullmatch(rf"/opt/tfdist/lib/python3\.\d+/site-packages/nvidia/{re.escape(file)}", path)


def test_the_user_is_an_ordinary_one_and_the_driver_is_asked_for(docker, image):
    (told,) = json.loads(docker("image", "inspect", image).stdout)
    assert told["Config"]["User"] == "tfdist"
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(told["Config"]["Env"])
    assert docker.run(image, "id", "-u", options=CONFINED).strip() == "1000"


def test_two_ranks_train_on_the_processor(docker, image):
    command = ("tfdistrun", "-np", "2", "python", "digits.py", "--epochs", "12", "--output", "/checkpoints")
    told = docker.run(image, *command, options=(*WITHOUT_GPU, "--volume", f"{ROOT / 'examples'}:/job:ro"))
    (accuracy,) = re.findall(r"\[0\] validation accuracy: ([\d.]+)", told)
    assert float(accuracy) > 0.95


def test_what_it_takes_besides_tensorflow_and_nvidias_packages(docker, image, capsys):
    parts = image_size.NVIDIA | image_size.TENSORFLOW | image_size.EXAMPLE
    whole, taken = image_size.sizes(docker, image, parts)
    rest = whole - sum(taken.values())
    listed = ", ".join(f"{name} {mib:,}" for name, mib in taken.items())
    with capsys.disabled():
        print(f"\n{image}: {whole:,} MiB: {listed}, the rest {rest:,}")
    assert 0 < rest <= image_size.LIMIT_MIB
