"""Settings from the environment: defaults, both names, and what a bad value says."""

import pytest

from tfdist import config
from tfdist.errors import ConfigError


def test_defaults_fill_what_is_not_set():
    settings = config.read({})
    assert settings.fusion_threshold == 8 << 20
    assert settings.stall_warning_seconds == 60
    assert settings.compression == "none"
    assert settings.mpi_home is None


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("TFDIST_FUSION_THRESHOLD", "0", "fusion_threshold", 0),
        ("HOROVOD_FUSION_THRESHOLD", "1024", "fusion_threshold", 1024),
        ("TFDIST_STALL_CHECK_WARNING_TIME", "2.5", "stall_warning_seconds", 2.5),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "3", "stall_warning_seconds", 3.0),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "4", "stall_shutdown_seconds", 4.0),
        ("TFDIST_COMPRESSION", "BF16", "compression", "bf16"),
        ("HOROVOD_LOG_LEVEL", "info", "log_level", "info"),
        ("TFDIST_LAUNCHED", "1", "launched", True),
        ("TFDIST_ELASTIC", "1", "elastic", True),
        ("HOROVOD_GPU_OPERATIONS", "NCCL", "gpu_operations", "nccl"),
        ("TFDIST_GPU_OPERATIONS", "mpi", "gpu_operations", "mpi"),
        ("TFDIST_HIERARCHICAL_ALLREDUCE", "nccl", "hierarchical_allreduce", "nccl"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1", "hierarchical_allreduce", "mpi"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "0", "hierarchical_allreduce", "off"),
        ("TFDIST_PIN_GPUS", "0", "pin_gpus", False),
        ("TFDIST_NCCL_LIBRARY", "/opt/libnccl.so.2", "nccl_library", "/opt/libnccl.so.2"),
        ("TFDIST_NVRTC_LIBRARY", "/opt/libnvrtc.so.12", "nvrtc_library", "/opt/libnvrtc.so.12"),
        ("TFDIST_KERNEL_CACHE", "/tmp/kernels", "kernel_cache", "/tmp/kernels"),
        ("TFDIST_KERNEL_CACHE", "None", "kernel_cache", ""),
    ],
)
def test_variable_sets_its_field(variable, text, field, value):
    assert getattr(config.read({variable: text}), field) == value


def test_own_name_wins_over_horovods_and_empty_is_unset():
    both = {"TFDIST_FUSION_THRESHOLD": "1", "HOROVOD_FUSION_THRESHOLD": "2"}
    assert config.read(both).fusion_threshold == 1
    assert config.read(both | {"TFDIST_FUSION_THRESHOLD": ""}).fusion_threshold == 2


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TFDIST_FUSION_THRESHOLD", "many"),
        ("TFDIST_FUSION_THRESHOLD", "-1"),
        ("TFDIST_STALL_CHECK_WARNING_TIME", "nan"),
        ("TFDIST_STALL_CHECK_SHUTDOWN_TIME", "0"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "inf"),
        ("TFDIST_HOST_TIMEOUT", "0"),
        ("TFDIST_COMPRESSION", "zip"),
        ("TFDIST_LOG_LEVEL", "loud"),
        ("TFDIST_LAUNCHED", "yes"),
        ("TFDIST_PIN_GPUS", "2"),
    ],
)
def test_bad_value_names_variable_and_value(variable, text):
    with pytest.raises(ConfigError, match=f"{variable}='{text}' cannot be used"):
        config.read({variable: text})


@pytest.mark.parametrize("variable", ["TFDIST_LAUNCHED", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"])
def test_a_launcher_is_recognised(variable):
    assert config.started_by_launcher({variable: "1"})
    assert not config.started_by_launcher({})


def test_kernels_are_kept_in_the_cache_of_the_user(monkeypatch):
    assert config.read({"XDG_CACHE_HOME": "/elsewhere"}).kernel_cache == "/elsewhere/tfdist"
    monkeypatch.setenv("HOME", "/homes/me")
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}, {"TFDIST_KERNEL_CACHE": ""}):
        assert config.read(unset).kernel_cache == "/homes/me/.cache/tfdist"
    assert config.read({"TFDIST_KERNEL_CACHE": "~/kernels"}).kernel_cache == "/homes/me/kernels"


@pytest.mark.parametrize(
    ("function", "environment", "place"),
    [
        (config.launcher_local_place, {}, None),
        (config.launcher_local_place, {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (1, 4)),
        (config.launcher_local_place, {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2)),
        (config.launcher_local_place, {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, None),
        (config.launcher_place, {}, None),
        (config.launcher_place, {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, (5, 8)),
        (config.launcher_place, {"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        (config.launcher_place, {"PMIX_RANK": "1"}, None),
    ],
)
def test_place_in_the_job_and_on_the_host(function, environment, place):
    assert function(environment) == place


def test_table_has_every_variable_once():
    text = config.table({"TFDIST_COMPRESSION": "fp16"})
    for setting in config.SETTINGS:
        assert [line.split()[0] for line in text.splitlines()].count(setting.variable) == 1
    assert "fp16" in text
