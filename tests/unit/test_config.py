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
        ("TFDIST_COMPRESSION", "zip"),
        ("TFDIST_LOG_LEVEL", "loud"),
        ("TFDIST_LAUNCHED", "yes"),
    ],
)
def test_bad_value_names_variable_and_value(variable, text):
    with pytest.raises(ConfigError, match=f"{variable}='{text}' cannot be used"):
        config.read({variable: text})


@pytest.mark.parametrize("variable", ["TFDIST_LAUNCHED", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"])
def test_a_launcher_is_recognised(variable):
    assert config.started_by_launcher({variable: "1"})
    assert not config.started_by_launcher({})


def test_table_has_every_variable_once():
    text = config.table({"TFDIST_COMPRESSION": "fp16"})
    for setting in config.SETTINGS:
        assert text.count(setting.variable) == 1
    assert "fp16" in text
