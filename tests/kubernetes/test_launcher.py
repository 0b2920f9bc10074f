"""docker/launcher.sh with keys that are given, beside programs that only tell how they were called.

tests/compose runs it in containers, where it makes its keys and where they are given.
"""

import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "launcher.sh"
# Addresses and names as in Kubernetes: the name of a pod means nothing without that of its Service.
ADDRESSES = {"10.0.0.7": "train-worker-0", "10.0.0.12": "train-worker-1"}
SERVICE = "train-worker"
ONE, TWO = ADDRESSES
KEY = "ssh-ed25519 AAAA"
NAMES = {address: f"{name}.{SERVICE}" for address, name in ADDRESSES.items()}
# It answers from the lines of a file. Of the service one address is there at the first question.
GETENT = """\
if [[ $2 == train-worker && ! -e $TRACE/asked ]]; then touch "$TRACE/asked"; echo "10.0.0.7 STREAM"; exit; fi
sed -n "s/^$1 $2: //p" "$TRACE/names" | grep . || exit 2
"""
# It refuses the first call for each host, as a worker does that is about to start.
SSH = """\
name=${@: -2:1}
if [[ ! -e $TRACE/$name ]]; then touch "$TRACE/$name"; exit 255; fi
"""
# It prints what $ANSWERS has for the addresses that are asked for, which it notes.
KEYSCAN = """\
for word; do
  [[ $word != 10.* ]] || { echo "$word" >> "$TRACE/asked-by-key"; grep -F "[$word]" "$ANSWERS"; }
done
"""
TFDISTRUN = """\
python3 - "$@" > "$TRACE/tfdistrun.json" << 'END'
import json, sys
print(json.dumps(sys.argv[1:]))
END
"""


@pytest.fixture
def launch(tmp_path):
    """Runs the script with some variables; its result, and what is left of it."""
    programs, home, trace = (tmp_path / name for name in ("programs", "home", "trace"))
    for folder in (programs, home / ".ssh", trace):
        folder.mkdir(parents=True)
    lines = [f"ahostsv4 {SERVICE}: {address}  STREAM" for address in reversed(ADDRESSES)]
    for address, name in NAMES.items():
        full = f"{name}.default.svc.cluster.local"
        lines.append(f"hosts {address}: {address} {full}")
        lines += [f"ahostsv4 {full.rsplit('.', cut)[0]}: {address} STREAM" for cut in (2, 3, 4)]
        lines.append(f"ahostsv4 {full}: {address} STREAM")
    lines.append("ahostsv4 train-launcher-x7k2p: 10.0.0.1  STREAM")
    (trace / "names").write_text("".join(f"{line}\n" for line in lines))
    write(programs / "getent", GETENT)
    write(programs / "ssh", SSH)
    write(programs / "tfdistrun", TFDISTRUN)
    write(programs / "ssh-keyscan", KEYSCAN)
    (tmp_path / "private").write_text("the private key\n")
    (tmp_path / "host.pub").write_text("ssh-ed25519 AAAA of the workers\n")
    keys = {"LAUNCHER_KEY": str(tmp_path / "private"), "HOST_KEY": str(tmp_path / "host.pub")}

    def run(*command, **variables):
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "TRACE": str(trace)}
        environment |= {"TMPDIR": str(tmp_path), "ANSWERS": str(tmp_path / "answers")}
        environment |= {"HOSTNAME": "train-launcher-x7k2p"}
        environment |= {name: value for name, value in (keys | variables).items() if value is not None}
        done = subprocess.run([SCRIPT, *command], env=environment, capture_output=True, text=True, timeout=60)
        called = trace / "tfdistrun.json"
        words = json.loads(called.read_text()) if called.exists() else None
        return done, words, home / ".ssh"

    return run


@pytest.fixture
def answers(launch, tmp_path):
    """Sets what workers answer, an address with its host key each; all of them have an address at once."""
    (tmp_path / "trace" / "asked").touch()

    def answer(**keys):
        lines = (f"[{address}]:2222 {key}\n" for address, key in keys.items())
        (tmp_path / "answers").write_text("".join(lines))

    return answer


def write(path, text):
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


def known_hosts(folder):
    """What ssh is told of host keys."""
    lines = (folder / "config").read_text().splitlines()
    asked = next(line for line in lines if "KnownHostsCommand" in line).split(maxsplit=1)[1]
    return subprocess.run(shlex.split(asked), capture_output=True, text=True, check=True).stdout


def test_waits_for_all_workers_and_uses_names_that_resolve(launch, tmp_path):
    done, words, _ = launch("python", "train.py", WORKER_SERVICE=SERVICE, WORKERS="2", SLOTS="3")
    assert done.returncode == 0, done.stderr
    hosts = f"train-worker-0.{SERVICE}:3,train-worker-1.{SERVICE}:3"
    assert words == ["-np", "6", "-H", hosts, "python", "train.py"]
    assert f"6 ranks on {hosts}" in done.stderr
    # Each was tried by ssh before.
    assert {path.name for path in (tmp_path / "trace").glob("*-worker-*")} == {host[:-2] for host in hosts.split(",")}


@pytest.mark.parametrize(("count", "named"), [("2", "6 ranks on 2 workers"), ("1", "3 ranks on 1 worker\n")])
def test_agents_come_to_a_port_with_the_given_key(launch, tmp_path, count, named):
    (tmp_path / "job_key").write_text("k" * 64)
    given = {"AGENTS_PORT": "4000", "JOB_KEY": str(tmp_path / "job_key"), "ELASTIC_OPTIONS": "--min-np\n1\n"}
    done, words, folder = launch(
        "python", "a b.py", **given, WORKERS=count, SLOTS="3", WORKER_TIMEOUT="9", LAUNCH_OPTIONS="--start-timeout\n7"
    )
    assert done.returncode == 0, done.stderr
    ranks = str(3 * int(count))
    listens = ["--agents", count, "--listen", "10.0.0.1:4000", "--key-file", given["JOB_KEY"], "--start-timeout", "9"]
    assert words == ["-np", ranks, *listens, "--min-np", "1", "--start-timeout", "7", "python", "a b.py"]
    assert f"tfdist-launcher: {named}" in done.stderr
    assert list(folder.iterdir()) == [], "no key of ssh"


def test_knows_workers_by_the_given_key_only(launch):
    done, _, folder = launch("python", WORKER_SERVICE=SERVICE, WORKERS="2")
    assert done.returncode == 0, done.stderr
    assert (folder / "id_ed25519").read_text() == "the private key\n"
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o400
    text = (folder / "config").read_text()
    assert "StrictHostKeyChecking yes" in text
    assert "UserKnownHostsFile none" in text
    assert known_hosts(folder) == "[*]:2222 ssh-ed25519 AAAA of the workers\n"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_key_behind_a_link_counts_only_where_it_is_named(launch, answers, tmp_path, kind):
    """Kubernetes gives a secret as links to files; in a folder that workers share, one may lead anywhere."""
    answers(**{ONE: KEY, TWO: "ssh-ed25519 BBBB"})
    mounted, elsewhere = tmp_path / "mounted", tmp_path / "elsewhere"
    for folder, key in ((mounted / "..data", KEY), (elsewhere, "ssh-ed25519 BBBB")):
        folder.mkdir(parents=True)
        (folder / "host.pub").write_text(f"{key} of a worker\n")
    if kind == "link":
        (mounted / "host.pub").symlink_to("..data/host.pub")
        told = mounted / "host.pub"
    else:
        told = mounted / "..data"
        (told / "planted").symlink_to(elsewhere / "host.pub")
        (told / "planted-folder").symlink_to(elsewhere)
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE, HOST_KEY=str(told))
    assert (done.returncode, done.stdout) == (0, f"{NAMES[ONE]}:1\n")
    done, _, folder = launch("python", WORKER_SERVICE=SERVICE, WORKERS="2", HOST_KEY=str(told))
    assert done.returncode == 0, done.stderr
    assert known_hosts(folder) == f"[*]:2222 {KEY} of a worker\n"


def test_takes_a_hostfile_as_kubeflows_operator_writes_it(launch, tmp_path):
    names = [f"train-worker-{number}.train.default.svc" for number in range(2)]
    (tmp_path / "hostfile").write_text(f"{names[0]} slots=2\n\n# a comment\n{names[1]} slots=3\n")
    done, words, _ = launch("python", "a b.py", HOSTFILE=str(tmp_path / "hostfile"), LAUNCH_OPTIONS="--verbose")
    assert done.returncode == 0, done.stderr
    assert words == ["-np", "5", "-H", f"{names[0]}:2,{names[1]}:3", "--verbose", "python", "a b.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no workers found; expected lines like 'name slots=2'"),
        ("one slots=0\n", "cannot parse 'one slots=0'"),
        ("one:2\ntwo 3\n", "cannot parse 'two 3'"),
        ("one slots=2 max=3\n", "cannot parse 'one slots=2 max=3'"),
    ],
)
def test_a_hostfile_that_is_none_is_refused(launch, tmp_path, text, message):
    (tmp_path / "hostfile").write_text(text)
    done, words, _ = launch("python", HOSTFILE=str(tmp_path / "hostfile"))
    assert (done.returncode, words) == (1, None)
    assert message in done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HOST_KEY": None}, "HOST_KEY is '', which is not a key file; set both LAUNCHER_KEY and HOST_KEY"),
        ({"LAUNCHER_KEY": "/nowhere"}, "LAUNCHER_KEY is '/nowhere', which is not a key file"),
        ({"AGENTS_PORT": "4000", "JOB_KEY": "/nowhere"}, "JOB_KEY is '/nowhere', which is not a key file"),
        (
            {"AGENTS_PORT": "4000", "HOSTNAME": "nowhere"},
            "the name of this container, 'nowhere', has no address; its network must give it one",
        ),
        ({"WORKERS": "none"}, "WORKERS is 'none'; expected the number of workers to wait for, 1 or more"),
        ({"SLOTS": "two"}, "SLOTS is 'two'; expected the number of ranks on each worker"),
        ({"WORKER_TIMEOUT": "soon"}, "WORKER_TIMEOUT is 'soon'; expected a number of seconds"),
        ({"HOSTFILE": "/nowhere"}, "HOSTFILE is '/nowhere', which cannot be read"),
        (
            {"WORKERS": "3", "WORKER_SERVICE": SERVICE, "WORKER_TIMEOUT": "1"},
            "fewer than 3 workers have an address under the name 'train-worker' within 1 s (WORKER_TIMEOUT)",
        ),
        (
            {"WORKER_SERVICE": "nobody", "WORKER_TIMEOUT": "1"},
            "no worker has an address under the name 'nobody' within 1 s (WORKER_TIMEOUT)",
        ),
    ],
)
def test_says_what_it_lacks(launch, variables, message):
    done, words, _ = launch("python", **variables)
    assert (done.returncode, words) == (1, None)
    assert message in done.stderr


def test_worker_without_a_name_is_called_by_its_address(launch, tmp_path):
    """Where the network's names lead elsewhere, or nowhere."""
    names = tmp_path / "trace" / "names"
    names.write_text(names.read_text().replace("10.0.0.12 STREAM", "10.0.0.1 STREAM"))
    done, words, _ = launch("python", WORKER_SERVICE=SERVICE, WORKERS="2")
    assert done.returncode == 0, done.stderr
    assert words[3] == f"10.0.0.12:1,train-worker-0.{SERVICE}:1"


def test_a_worker_whose_name_is_gone_is_gone(launch, answers, tmp_path):
    answers(**{ONE: KEY, TWO: KEY})
    names = tmp_path / "trace" / "names"
    names.write_text(names.read_text().replace("10.0.0.12 STREAM", "10.0.0.1 STREAM"))
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE)
    assert (done.returncode, done.stdout) == (0, f"{NAMES[ONE]}:1\n")


def test_an_elastic_job_asks_for_the_workers_again_and_again(launch, answers):
    answers(**{ONE: KEY, TWO: KEY})
    elastic = {"WORKER_SERVICE": SERVICE, "SLOTS": "2", "ELASTIC_OPTIONS": "--min-np 3", "WORKERS": "2"}
    done, words, _ = launch("python", LAUNCH_OPTIONS="\n--verbose\n", **elastic)
    assert done.returncode == 0, done.stderr
    assert words[:3] == ["-np", "4", "--host-discovery-script"]
    assert words[4:] == ["--min-np", "3", "--verbose", "python"]
    done, _, _ = launch(*shlex.split(words[3])[1:], **elastic)
    assert shlex.split(words[3])[0] == str(SCRIPT)
    assert (done.returncode, done.stdout) == (0, f"{NAMES[ONE]}:2\n{NAMES[TWO]}:2\n")


@pytest.mark.parametrize("key", ["", "ssh-ed25519 BBBB"], ids=["silent", "another-key"])
def test_worker_with_an_unknown_key_is_not_there(launch, answers, key):
    answers(**{ONE: KEY} | ({TWO: key} if key else {}))
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE)
    assert (done.returncode, done.stdout) == (0, f"{NAMES[ONE]}:1\n")
    done, words, _ = launch(
        "python", WORKER_SERVICE=SERVICE, WORKERS="2", ELASTIC_OPTIONS="--elastic", WORKER_TIMEOUT="1"
    )
    assert (done.returncode, words) == (1, None)
    assert f"fewer than 2 workers answer under the name '{SERVICE}' within 1 s (WORKER_TIMEOUT)" in done.stderr


@pytest.mark.parametrize(("silence", "there"), [(1, True), (10, True), (30, False)])
def test_a_worker_is_there_while_its_silence_is_borne(launch, answers, tmp_path, silence, there):
    answers()
    heard = tmp_path / "tfdist-workers"
    heard.mkdir()
    (heard / ONE).write_text(f"{int(time.time()) - silence}\n")
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE, TFDIST_HOST_TIMEOUT="6.5")
    assert done.stdout == (f"{NAMES[ONE]}:1\n" if there else "")
    asked = (tmp_path / "trace" / "asked-by-key").read_text().split()
    assert asked == ([TWO] if silence == 1 else [ONE, TWO])


def test_where_there_is_no_worker_none_is_printed(launch):
    done, _, _ = launch("--workers", WORKER_SERVICE="nobody")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("question", ["ahostsv4", "hosts"])
def test_a_resolver_that_fails_for_a_moment_takes_no_worker_away(launch, answers, tmp_path, question):
    answers(**{ONE: KEY, TWO: KEY})
    assert launch("--workers", WORKER_SERVICE=SERVICE)[0].returncode == 0
    getent = tmp_path / "programs" / "getent"
    working = getent.read_text()
    write(getent, f"[[ $1 != {question} ]] || exit 2\n{working}")
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE, TFDIST_HOST_TIMEOUT="6.5")
    assert (done.returncode, done.stdout) == (1, "")
    told = f"'{SERVICE}' resolves to no worker with a name of its own, though {ONE} answered within the last 11 s"
    assert told in done.stderr or told.replace(ONE, TWO) in done.stderr
    answers()
    for address in (ONE, TWO):
        (tmp_path / "tfdist-workers" / address).write_text(f"{int(time.time()) - 30}\n")
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE, TFDIST_HOST_TIMEOUT="6.5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "they have gone"


def test_unreadable_host_key_is_no_lost_worker(launch, answers, tmp_path):
    answers(**{ONE: KEY})
    done, _, _ = launch("--workers", WORKER_SERVICE=SERVICE, HOST_KEY=str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "No such file" in done.stderr


def test_a_list_of_workers_that_stays_is_not_for_an_elastic_job(launch, tmp_path):
    done, words, _ = launch("python", HOSTFILE=str(tmp_path / "hostfile"), ELASTIC_OPTIONS="--min-np 1")
    assert (done.returncode, words) == (1, None)
    assert "HOSTFILE has a fixed set of workers; ELASTIC_OPTIONS requires WORKER_SERVICE" in done.stderr


def test_without_a_command_it_says_so(launch):
    done, _, _ = launch()
    assert done.returncode == 1
    assert "no command; write it after the name, as in: tfdist-launcher python train.py" in done.stderr
