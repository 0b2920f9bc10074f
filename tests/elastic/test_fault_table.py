"""Each line of the table "What happens when" in docs/elastic.md has its tests, and they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FIT = "elastic/test_fit.py::test_survivors_reach_the_weights_of_a_lossless_training"
THREE = f"{FIT}[the first, one after the last step of an epoch, one in a validation]"
WAYS = f"{FIT}[at the end of an epoch, in a commit that it writes, by an error]"
ANEW, PLANNED = "elastic/test_generations.py::test_", "elastic/test_planned_start.py::test_"
HOSTS, LOST = "launch/test_changing_hosts.py::test_", "launch/test_lost_host.py::test_"
ELASTIC, STORE = "launch/test_elastic.py::test_", "unit/elastic/test_commit_store.py::test_"
# The beginning of a line, and the tests.
TESTS = {
    "a rank is killed, also rank 0": (THREE, WAYS),
    "several are killed at once": (f"{FIT}[two at once]", THREE),
    "a rank is killed while the others continue": (
        f"{FIT}[while the others meet and while they get the newest commit]",
        f"{FIT}[while the others compare their commits]",
    ),
    "a rank fails by an error": (WAYS,),
    "a rank is killed in the middle of a commit": (
        WAYS,
        f"{ANEW}killed_in_a_commit_and_again_when_started_anew",
        f"{STORE}what_a_killed_process_has_begun_is_not_seen",
    ),
    "a rank gets SIGTERM": ("elastic/test_told_to_end.py::test_a_rank_leaves_at_its_next_commit",),
    "fewer ranks are left": (f"{ANEW}too_few_are_left", f"{ANEW}one_rank_alone"),
    "a rank hangs": (f"{FIT}[one that hangs]", f"{ELASTIC}rank_that_hangs_is_ended"),
    "a rank is slow": ("cpp/core/engine/test_failure.cc::FailureToArriveInTimeIsReportedOnceAndThenForgiven",),
    "a rank ends too early": (
        f"{ANEW}a_rank_that_ends_too_early",
        "launch/test_training_failure.py::test_a_rank_that_has_finished_is_named",
    ),
    "a rank is killed before it has joined": (
        f"{ELASTIC}rank_that_fails_before_it_has_joined",
        f"{ANEW}a_program_that_fails_before_its_first_commit",
        f"{ANEW}killed_in_a_commit_and_again_when_started_anew",
    ),
    "a host is killed": (f"{LOST}elastic_job_goes_on_in_place_without_the_host[kill]",),
    "a host is cut off": (
        f"{LOST}elastic_job_goes_on_in_place_without_the_host[freeze]",
        f"{LOST}elastic_job_goes_on_in_place_without_the_host[unplug]",
        f"{HOSTS}a_host_is_found_and_then_cut_off",
    ),
    "a lost host comes back": (f"{HOSTS}a_host_that_flaps_is_left_out_for_longer_each_time",),
    "a host stays away": (f"{HOSTS}a_host_that_stays_away",),
    "the hosts that are left": (f"{HOSTS}too_few_hosts_are_waited_for_and_then_the_job_fails",),
    "all are restarted": (f"{ANEW}the_limit",),
    "the script finds": (f"{HOSTS}a_host_is_found_and_then_cut_off", f"{PLANNED}a_host_gets_more_slots_and_then_fewer"),
    "the same in a script": (
        f"{PLANNED}nobody_joins_a_second_training",
        "unit/launch/run/test_generations.py::test_another_machine_cannot_join_a_job_of_this_one",
    ),
    "new ranks fail": (
        f"{HOSTS}a_host_on_which_nothing_works_is_found",
        f"{PLANNED}a_newcomer_that_fails_costs_the_others_nothing",
    ),
    "a host is taken off": (
        f"{HOSTS}a_host_is_taken_off_the_list_and_the_script_fails",
        f"{PLANNED}a_host_gets_more_slots_and_then_fewer",
    ),
    "the script fails": (
        f"{HOSTS}a_host_is_taken_off_the_list_and_the_script_fails",
        "unit/launch/host/test_discovery.py::test_script_that_does_not_end_is_ended_with_all_it_started",
    ),
    "the script prints no host while": (
        f"{HOSTS}a_host_is_taken_off_the_list_and_the_script_fails",
        "unit/launch/run/test_generations.py::test_empty_list_is_not_believed_while_ranks_run",
    ),
    "the script prints no host at": ("unit/launch/test_command.py::test_empty_list_of_hosts_at_the_start",),
    "the newest commit is damaged": (f"{ANEW}the_newest_commit_is_damaged",),
    "every commit that is found": ("ranks/test_elastic_state.py::test_restarted_training_names_damaged_commits",),
    "`/dev/shm` is full": (
        f"{STORE}without_room_the_last_two_stay",
        "ranks/test_elastic_state.py::test_a_commit_that_cannot_be_written_is_told_and_passed_over",
    ),
    "the disk is full": (
        "ranks/callbacks/test_model_checkpoint.py::test_a_failed_write_leaves_the_old_file",
        "launch/test_backup_and_restore.py::test_killed_in_the_middle_of_an_epoch",
        "unit/system/test_atomic_file.py::test_a_failure_leaves_the_old_file",
    ),
    "gradients are NaN": (
        "ranks/test_parity.py::test_an_infinity_on_one_rank_skips_the_step_on_all",
        "ranks/callbacks/test_metric_average.py::test_nan_on_one_rank_stops_all_at_the_same_batch",
    ),
    "ranks call different": ("ranks/test_mismatch.py::test_difference_is_named_on_every_rank",),
    "`tfdistrun` is killed": (
        f"{HOSTS}the_launcher_is_killed",
        "launch/test_interrupt.py::test_launcher_killed_leaves_nothing",
        "elastic/test_backup.py::test_job_with_a_killed_launcher_leaves_its_newest_commit",
    ),
    "Ctrl-C or SIGTERM": (
        f"{ELASTIC}interrupt_ends_the_ranks_that_went_on",
        "elastic/test_backup.py::test_the_next_job_goes_on_where_the_first_was_told_to_end",
        f"{HOSTS}a_wait_for_hosts_is_interrupted",
        f"{HOSTS}told_to_end_while_it_ends_by_itself",
    ),
    "strangers write": ("launch/test_stranger.py::test_strangers_change_nothing",),
}


def test_each_line_has_its_tests():
    _, _, rest = (ROOT / "docs/elastic.md").read_text().partition("\n## What happens when\n")
    lines = [line.removeprefix("| ") for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert [name for name, line in zip(TESTS, lines, strict=True) if not line.startswith(name)] == []


def test_each_test_is_there():
    for test in (test for tests in TESTS.values() for test in tests):
        file, name, case = re.fullmatch(r"(.+)::(\w+)(?:\[(.+)\])?", test).groups()
        text = (ROOT / "tests" / file).read_text()
        assert f"\n{'TEST(' if file.endswith('.cc') else 'def '}{name}" in text, test
        assert case is None or f'"{case}"' in text, test
