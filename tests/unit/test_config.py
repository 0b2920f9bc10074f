"""Settings from the environment: defaults, both names, and what a bad value says."""

import os
import re
from pathlib import Path

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
        ("HOROVOD_STALL_CHECK_DISABLE", "1", "stall_warning_seconds", 0.0),
        ("HOROVOD_STALL_CHECK_DISABLE", "0", "stall_warning_seconds", 60.0),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "4", "stall_shutdown_seconds", 4.0),
        ("TFDIST_COMPRESSION", "BF16", "compression", "bf16"),
        ("HOROVOD_LOG_LEVEL", "info", "log_level", "info"),
        ("HOROVOD_LOG_LEVEL", "trace", "log_level", "debug"),
        ("HOROVOD_LOG_LEVEL", "FATAL", "log_level", "error"),
        ("TFDIST_LAUNCHED", "1", "launched", True),
        ("TFDIST_ELASTIC", "1", "elastic", True),
        ("HOROVOD_GPU_OPERATIONS", "NCCL", "gpu_operations", "nccl"),
        ("TFDIST_GPU_OPERATIONS", "mpi", "gpu_operations", "mpi"),
        ("TFDIST_HIERARCHICAL_ALLREDUCE", "nccl", "hierarchical_allreduce", "nccl"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1", "hierarchical_allreduce", "mpi"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "0", "hierarchical_allreduce", "off"),
        ("TFDIST_PIN_GPUS", "0", "pin_gpus", False),
        ("TFDIST_COMMUNICATION_THREAD", "1", "communication_thread", True),
        ("TFDIST_AUTOTUNE", "Lossy", "autotune", "lossy"),
        ("HOROVOD_AUTOTUNE", "1", "autotune", "1"),
        ("TFDIST_AUTOTUNE_LOG", "/tmp/a.csv", "autotune_log", "/tmp/a.csv"),
        ("HOROVOD_AUTOTUNE_LOG", "/tmp/b.csv", "autotune_log", "/tmp/b.csv"),
        ("TFDIST_AUTOTUNE_RESULT", "~/a.json", "autotune_result", os.path.expanduser("~/a.json")),
        ("TFDIST_AUTOTUNE_SAMPLES", "5", "autotune_samples", 5),
        ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "6", "autotune_samples", 6),
        ("TFDIST_AUTOTUNE_STEPS", "7", "autotune_steps", 7),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "8", "autotune_steps", 8),
        ("TFDIST_NCCL_LIBRARY", "/opt/libnccl.so.2", "nccl_library", "/opt/libnccl.so.2"),
        ("TFDIST_NVRTC_LIBRARY", "/opt/libnvrtc.so.12", "nvrtc_library", "/opt/libnvrtc.so.12"),
        ("TFDIST_KERNEL_CACHE", "/tmp/kernels", "kernel_cache", "/tmp/kernels"),
        ("TFDIST_KERNEL_CACHE", "None", "kernel_cache", ""),
        ("TFDIST_TIMELINE", "/tmp/run.json", "timeline", "/tmp/run.json"),
        ("HOROVOD_TIMELINE", "~/run.json", "timeline", os.path.expanduser("~/run.json")),
        ("HOROVOD_TIMELINE", "DYNAMIC", "timeline", ""),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles", True),
    ],
)
def test_variable_sets_its_field(variable, text, field, value):
    assert getattr(config.read({variable: text}), field) == value


@pytest.mark.parametrize("field", ["timeline", "autotune_log", "autotune_result"])
def test_file_paths_survive_a_change_of_directory(field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert getattr(config.read({config.variable(field): "run"}), field) == str(tmp_path / "run")


def test_own_name_wins_over_horovods_and_empty_is_unset():
    both = {"TFDIST_FUSION_THRESHOLD": "1", "HOROVOD_FUSION_THRESHOLD": "2"}
    assert config.read(both).fusion_threshold == 1
    assert config.read(both | {"TFDIST_FUSION_THRESHOLD": ""}).fusion_threshold == 2


def test_stalls_are_reported_long_before_they_fail():
    settings = config.read({})
    assert (settings.stall_warning_seconds, settings.stall_shutdown_seconds) == (60, 600)


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
        ("TFDIST_COMMUNICATION_THREAD", "on"),
        ("TFDIST_AUTOTUNE", "2"),
        ("HOROVOD_AUTOTUNE", "yes"),
        ("TFDIST_AUTOTUNE_SAMPLES", "0"),
        ("TFDIST_AUTOTUNE_STEPS", "1.5"),
    ],
)
def test_bad_value_names_variable_and_value(variable, text):
    with pytest.raises(ConfigError, match=f"{variable}='{text}' cannot be used"):
        config.read({variable: text})


def test_misspelled_variables_are_told_with_what_was_meant():
    given = {
        "TFDIST_FUSION_TRESHOLD": "5",
        "TFDIST_TIMELNE": "x",
        "TFDIST_TIMELINE_FILENAME": "x",
        "TFDIST_TIMELINE": "y",
        "TFDIST_TEST_SAMPLE": "1",
        "FUSION_TRESHOLD": "5",
    }
    assert config.misspelled(given) == [
        "TFDIST_FUSION_TRESHOLD is not a tfdist variable and is ignored; did you mean TFDIST_FUSION_THRESHOLD?",
        "TFDIST_TIMELINE_FILENAME is not a tfdist variable and is ignored; did you mean TFDIST_TIMELINE?",
        "TFDIST_TIMELNE is not a tfdist variable and is ignored; did you mean TFDIST_TIMELINE?",
    ]


def test_what_tfdist_itself_sets_is_not_misspelled():
    texts = [file.read_text() for file in (Path(__file__).resolve().parents[2] / "tfdist").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\bTFDIST_[A-Z][A-Z_]*[A-Z]\b", text)}
    assert len(named) > len(config.SETTINGS)
    assert config.misspelled(dict.fromkeys(named, "1")) == []


def test_kernels_are_kept_in_the_cache_of_the_user(monkeypatch):
    assert config.read({"XDG_CACHE_HOME": "/elsewhere"}).kernel_cache == "/elsewhere/tfdist"
    monkeypatch.setenv("HOME", "/homes/me")
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}, {"TFDIST_KERNEL_CACHE": ""}):
        assert config.read(unset).kernel_cache == "/homes/me/.cache/tfdist"
    assert config.read({"TFDIST_KERNEL_CACHE": "~/kernels"}).kernel_cache == "/homes/me/kernels"


def test_table_has_every_variable_once():
    text = config.table({"TFDIST_COMPRESSION": "fp16"})
    for setting in config.SETTINGS:
        assert [line.split()[0] for line in text.splitlines()].count(setting.variable) == 1
    assert "fp16" in text


def test_every_variable_of_horovod_has_an_effect_or_says_why_not():
    """Those of Horovod 0.28.1: of its C++ sources, of its launcher, and of its build."""
    honoured = {setting.horovod_variable for setting in config.SETTINGS} - {None}
    given = dict.fromkeys([*honoured, "HOROVOD_STALL_CHECK_DISABLE", "HOROVOD_RANK", "HOROVOD_HOSTNAME"], "1")
    assert config.horovod_leftovers(given) == []
    lines = config.horovod_leftovers(dict.fromkeys(config.IDLE_OF_HOROVOD, "1"))
    assert [line.partition(" has no effect: ")[0] for line in lines] == sorted(config.IDLE_OF_HOROVOD)
    of_build = {"HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_NCCL_HOME": "/n", "HOROVOD_CUDA_HOME": "", "HOME": "/"}
    (line,) = config.horovod_leftovers(of_build)
    assert line.startswith("HOROVOD_NCCL_HOME, HOROVOD_WITH_TENSORFLOW can have no effect")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("HOROVOD_FUSION_TRESHOLD", "did you mean HOROVOD_FUSION_THRESHOLD?"),
        ("HOROVOD_CYCLE_TIMES", "did you mean HOROVOD_CYCLE_TIME?"),
        ("HOROVOD_WHATEVER", "is not a variable of Horovod and is ignored"),
    ],
)
def test_a_variable_that_horovod_does_not_have_is_said(name, end):
    (line,) = config.horovod_leftovers({name: "1"})
    assert line.startswith(name)
    assert line.endswith(end)


def test_gradients_of_a_script_that_is_not_changed_are_horovods():
    assert config.read({}).gradients == "exact"
    assert config.read({"TFDIST_AS_HOROVOD": "1"}).gradients == "0.28"
    assert config.read({"TFDIST_AS_HOROVOD": "1", "HOROVOD_GRADIENTS": "exact"}).gradients == "exact"
    with pytest.raises(ConfigError, match=r"must be one of exact, 0\.28"):
        config.read({"HOROVOD_GRADIENTS": "0.27"})
