"""Ranks join others and leave them at a commit, in place: hosts come and go, a lost rank is replaced."""

import os
import re
import sys
from pathlib import Path

import pytest
import training
from elastic_job import check_weights, run, train

pytestmark = pytest.mark.slice("elastic")

SCRIPT = ("--host-discovery-script", "cat hosts")
RESTART = "restarting with"
# TensorFlow traces a function twice when it first runs, in a job without changes too.
TRACES = 2


def processes_of(done, rank):
    """The processes that have printed as this one, and how many times they have traced a training step."""
    return [
        tuple(map(int, found))
        for found in re.findall(rf"^\[{rank}\] process (\d+) traced (\d+)$", done.stdout, re.MULTILINE)
    ]


def test_a_host_gets_more_slots_and_then_fewer(tmp_path):
    """Nothing is done twice, in whatever epoch, and nobody is started again."""
    (tmp_path / "hosts").write_text("localhost:2")
    victims = "0:17:hosts=localhost/3,2:40:hosts=localhost/2"
    done = train(tmp_path, 2, "--elastic", *SCRIPT, victims=victims)
    # Of what is left of an epoch, an incomplete last round is not trained on.
    segments = [[0, 2, 0], [0, 3, 18], [1, 3, 46], [1, 2, 59], [2, 2, 99]]
    assert check_weights(tmp_path, done, [0, 1]) == segments
    assert "there are slots for 3 ranks: starting 1 rank on localhost:1, to join the others at a commit" in done.stderr
    assert f"rank 2 ({os.uname().nodename}) has joined; 3 ranks continue" in done.stderr
    fewer = "localhost has fewer slots or none: 1 rank on localhost:1 leaves at its next commit, the others continue"
    assert fewer in done.stderr
    assert "left at a commit, because its slot was taken away; 2 ranks continue" in done.stderr
    assert RESTART not in done.stderr
    (first,), (second,) = processes_of(done, 0), processes_of(done, 1)
    assert first[0] != second[0] and first[1] == second[1] == TRACES, "processes are kept, and what they have traced"


def test_a_lost_rank_is_replaced(tmp_path):
    options = ("--elastic", "--blacklist-cooldown-range", "1", "1")
    done = train(tmp_path, 3, *options, victims="1:10:step,2:20:wait")
    assert check_weights(tmp_path, done, [0, 2, 3], late=[3]) == [
        [0, 3, 0],
        [0, 2, 10],
        [0, 3, 21],
        [1, 3, 43],
        [2, 3, 83],
    ]
    assert "1 lost rank can be replaced: starting 1 rank on localhost:1" in done.stderr
    assert RESTART not in done.stderr
    assert [traced for _, traced in processes_of(done, 0) + processes_of(done, 2)] == [TRACES, TRACES]


def test_a_job_of_one_rank_grows(tmp_path):
    """What a step has traced when it was alone holds for several."""
    (tmp_path / "hosts").write_text("localhost:1")
    done = train(tmp_path, 1, "--elastic", *SCRIPT, victims="0:17:hosts=localhost/2")
    assert check_weights(tmp_path, done, [0, 1], late=[1]) == [[0, 1, 0], [0, 2, 18], [1, 2, 69], [2, 2, 129]]
    assert [traced for _, traced in processes_of(done, 0)] == [TRACES]


@pytest.mark.parametrize(("moment", "said"), [("again", "does not join the others"), ("joins=count", "has joined")])
def test_a_newcomer_that_fails_costs_the_others_nothing(tmp_path, moment, said):
    """Killed while it starts, it never joins; killed when it has met the others, it is lost as any other rank."""
    (tmp_path / "hosts").write_text("localhost:2")
    done = train(tmp_path, 2, "--elastic", *SCRIPT, victims=f"0:17:hosts=localhost/3,2:0:{moment}")
    segments = [[0, 2, 0], [1, 2, 60], [2, 2, 120]]
    met = [[0, 2, 18]] if moment != "again" else []
    assert check_weights(tmp_path, done, [0, 1]) == segments[:1] + met + segments[1:]
    assert f"rank 2 ({os.uname().nodename}) {said}" in done.stderr
    assert "killed by signal 9 (SIGKILL)" in done.stderr
    assert RESTART not in done.stderr
    assert [traced for _, traced in processes_of(done, 0) + processes_of(done, 1)] == [TRACES, TRACES]


# Rank 0 finds another slot in the middle of the training that is named, and waits for what follows.
COUNTS = """\
import os, pathlib, sys, time
import tfdist
tfdist.init()

@tfdist.elastic.run
def count(state):
    while state.step < 20:
        if state.step == 10 and state.last and tfdist.size() == 2 and tfdist.rank() == 0:
            pathlib.Path('hosts.new').write_text('localhost:3')
            pathlib.Path('hosts.new').replace('hosts')
            end = time.monotonic() + 60
            while not os.path.exists(os.environ['TFDIST_LEAVE']) and time.monotonic() < end: time.sleep(0.05)
        tfdist.allreduce(1.0, name='step')
        state.step += 1
        state.commit()

if sys.argv[1] == 'collective': tfdist.allreduce(1.0, name='before')
else: count(tfdist.elastic.ObjectState(step=0, last=False))
state = tfdist.elastic.ObjectState(step=0, last=True)
count(state)
print('ends', state.step, tfdist.size(), flush=True)
"""


@pytest.mark.parametrize("obstacle", ["collective", "second"])
def test_nobody_joins_a_second_training(tmp_path, obstacle):
    """Nor one that follows a collective, for which nobody would wait: all ranks are started again."""
    (tmp_path / "hosts").write_text("localhost:2")
    (tmp_path / "counts.py").write_text(COUNTS)
    words = ("-m", "tfdist.launch", "-np", "2", "--elastic", *SCRIPT, sys.executable, "counts.py", obstacle)
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there are slots for 3 ranks: all ranks leave at their next commit and are restarted" in done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "ends" in line) == [
        f"[{rank}] ends 20 3" for rank in range(3)
    ]


def test_no_more_ranks_than_asked_for_and_a_script_that_fails(tmp_path):
    (tmp_path / "hosts").write_text("localhost:2")
    done = train(tmp_path, 2, "--elastic", "--max-np", "3", *SCRIPT, victims="0:17:hosts=localhost/9")
    assert check_weights(tmp_path, done, [0, 1, 2], late=[2])[1:] == [[0, 3, 18], [1, 3, 46], [2, 3, 86]]
    (tmp_path / "hosts").unlink()
    done = train(tmp_path, 2, "--elastic", *SCRIPT, victims="")
    assert done.returncode == 2
    assert "--host-discovery-script cat hosts: it exited with status 1: cat: hosts: No such file" in done.stderr


@pytest.mark.parametrize(
    ("options", "victims", "left"),
    [
        ((*SCRIPT,), "0:80:hosts=localhost/3", 3),
        ((*SCRIPT,), "0:240:hosts=localhost/3", 3),
        (("--min-np", "2"), "1:130:step", 2),
    ],
    ids=["joins", "joins at the end", "restart"],
)
def test_callbacks_decide_alike(tmp_path, options, victims, left):
    """On ranks that have not seen what the others, or those of the first start, have."""
    (tmp_path / "hosts").write_text("localhost:2")
    ends = decide(tmp_path, *options, victims=victims)
    assert len(ends) == left and len(set(ends)) == 1, ends
    assert ends[0][:3] == ("4", "4", "3")
    assert float(ends[0][4]) == left / 2


def test_averages_are_in_the_weights_of_a_commit(tmp_path):
    """At the end of an epoch `SwapEMAWeights` has put them there; the next one begins with the weights again."""
    folders = [tmp_path / name for name in ("lost", "whole")]
    for folder in folders:
        folder.mkdir()
    lost, whole = (
        decide(folder, "--min-np", "2", victims=victims)
        for folder, victims in zip(folders, ("1:125:step", ""), strict=True)
    )
    assert (folders[0] / "victim-1-125-step").exists()
    assert len(whole) == 2 and set(lost) == set(whole)


def decide(folder, *options, victims):
    """What each rank prints at the end of deciding.py."""
    script = str(Path(training.__file__).with_name("deciding.py"))
    done = run(folder, "-m", "tfdist.launch", "-np", "2", "--elastic", *options, sys.executable, script, victims)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^\[\d\] ends after (\d) (\d) (\d) with (\d+ \d+) at ([\d.]+)$", done.stdout, re.MULTILINE)
