"""docker/launcher.sh with keys that are given, beside programs that only tell how they were called.

tests/compose runs it in containers, where it makes its keys and where they are given.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "launcher.sh"
# Addresses and names as in Kubernetes: the name of a pod means nothing without that of its Service.
ADDRESSES = {"10.0.0.7": "train-worker-0", "10.0.0.12": "train-worker-1"}
SERVICE = "train-worker"
GETENT = """\
case "$1 $2" in
{ahosts}
{hosts}
*) exit 2 ;;
esac
"""
# It refuses the first call for each host, as a worker does that is about to start.
SSH = """\
name=${@: -2:1}
if [[ ! -e $TRACE/$name ]]; then touch "$TRACE/$name"; exit 255; fi
"""
TFDISTRUN = """\
python3 - "$@" > "$TRACE/tfdistrun.json" << 'END'
import json, sys
print(json.dumps(sys.argv[1:]))
END
"""
# Addresses of the service at the first question and at later ones.
RAMP = """\
if [[ $2 == train-worker && ! -e $TRACE/asked ]]; then touch "$TRACE/asked"; echo "10.0.0.7 STREAM"; exit; fi
"""


@pytest.fixture
def launch(tmp_path):
    """Runs the script with some variables; its result, and what is left of it."""
    programs, home, trace = (tmp_path / name for name in ("programs", "home", "trace"))
    for folder in (programs, home / ".ssh", trace):
        folder.mkdir(parents=True)
    reverse = {address: f"{name}.{SERVICE}.default.svc.cluster.local" for address, name in ADDRESSES.items()}
    listed = r"\n".join(f"{address}  STREAM" for address in reversed(ADDRESSES))
    known = {"ahostsv4 " + SERVICE: listed}
    for address, name in reverse.items():
        known |= {f"ahostsv4 {'.'.join(name.split('.')[:count])}": f"{address} STREAM" for count in (2, 3, 4, 6)}
    write(
        programs / "getent",
        RAMP
        + GETENT.format(
            ahosts="\n".join(f'"{question}") printf "{answer}\\n" ;;' for question, answer in known.items()),
            hosts="\n".join(f'"hosts {address}") echo "{address} {name}" ;;' for address, name in reverse.items()),
        ),
    )
    write(programs / "ssh", SSH)
    write(programs / "tfdistrun", TFDISTRUN)
    (tmp_path / "private").write_text("the private key\n")
    (tmp_path / "host.pub").write_text("ssh-ed25519 AAAA of the workers\n")
    keys = {"LAUNCHER_KEY": str(tmp_path / "private"), "HOST_KEY": str(tmp_path / "host.pub")}

    def run(*command, **variables):
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "TRACE": str(trace)}
        environment |= {name: value for name, value in (keys | variables).items() if value is not None}
        done = subprocess.run([SCRIPT, *command], env=environment, capture_output=True, text=True, timeout=60)
        called = trace / "tfdistrun.json"
        words = json.loads(called.read_text()) if called.exists() else None
        return done, words, home / ".ssh"

    return run


def write(path, text):
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


def test_waits_for_all_workers_and_calls_them_by_names_that_lead_to_them(launch, tmp_path):
    done, words, _ = launch("python", "train.py", WORKER_SERVICE=SERVICE, WORKERS="2", SLOTS="3")
    assert done.returncode == 0, done.stderr
    hosts = f"train-worker-0.{SERVICE}:3,train-worker-1.{SERVICE}:3"
    assert words == ["-np", "6", "-H", hosts, "python", "train.py"]
    assert f"6 ranks on {hosts}" in done.stderr
    # Each was tried by ssh before.
    assert {path.name for path in (tmp_path / "trace").glob("*-worker-*")} == {host[:-2] for host in hosts.split(",")}


def test_knows_the_workers_by_the_key_that_is_given_and_no_others(launch):
    done, _, folder = launch("python", WORKER_SERVICE=SERVICE, WORKERS="2")
    assert done.returncode == 0, done.stderr
    assert (folder / "known_hosts").read_text().splitlines() == [
        f"[{name}.{SERVICE}]:2222,[{address}]:2222 ssh-ed25519 AAAA" for address, name in ADDRESSES.items()
    ]
    assert (folder / "id_ed25519").read_text() == "the private key\n"
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o400
    text = (folder / "config").read_text()
    assert "StrictHostKeyChecking yes" in text
    assert f"UserKnownHostsFile {folder}/known_hosts" in text


def test_takes_a_hostfile_as_kubeflows_operator_writes_it(launch, tmp_path):
    names = [f"train-worker-{number}.train.default.svc" for number in range(2)]
    (tmp_path / "hostfile").write_text(f"{names[0]} slots=2\n\n# a comment\n{names[1]} slots=3\n")
    done, words, folder = launch("python", "a b.py", HOSTFILE=str(tmp_path / "hostfile"), LAUNCH_OPTIONS="--verbose")
    assert done.returncode == 0, done.stderr
    assert words == ["-np", "5", "-H", f"{names[0]}:2,{names[1]}:3", "--verbose", "python", "a b.py"]
    assert (folder / "known_hosts").read_text() == "".join(f"[{name}]:2222 ssh-ed25519 AAAA\n" for name in names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no worker in it; expected lines like 'name slots=2'"),
        ("one slots=0\n", "'one slots=0' is not understood"),
        ("one:2\ntwo 3\n", "'two 3' is not understood"),
        ("one slots=2 max=3\n", "'one slots=2 max=3' is not understood"),
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
        ({"HOST_KEY": None}, "HOST_KEY is '', which is no file with a key; LAUNCHER_KEY and HOST_KEY go together"),
        ({"LAUNCHER_KEY": "/nowhere"}, "LAUNCHER_KEY is '/nowhere', which is no file with a key"),
        ({"WORKERS": "none"}, "WORKERS is 'none'; expected the number of workers to wait for, 1 or more"),
        ({"HOSTFILE": "/nowhere"}, "HOSTFILE is '/nowhere', which cannot be read"),
        (
            {"WORKERS": "3", "WORKER_SERVICE": SERVICE, "WORKER_TIMEOUT": "1"},
            "fewer than 3 workers have an address as 'train-worker' within 1 s (WORKER_TIMEOUT)",
        ),
        (
            {"WORKER_SERVICE": "nobody", "WORKER_TIMEOUT": "1"},
            "no worker has an address as 'nobody' within 1 s (WORKER_TIMEOUT)",
        ),
    ],
)
def test_says_what_it_lacks(launch, variables, message):
    done, words, _ = launch("python", **variables)
    assert (done.returncode, words) == (1, None)
    assert message in done.stderr


def test_a_worker_that_is_reached_at_no_name_is_called_by_its_address(launch, tmp_path):
    """Where the network's names lead elsewhere, or nowhere."""
    getent = tmp_path / "programs" / "getent"
    getent.write_text(getent.read_text().replace("10.0.0.12 STREAM", "10.0.0.1 STREAM"))
    done, words, _ = launch("python", WORKER_SERVICE=SERVICE, WORKERS="2")
    assert done.returncode == 0, done.stderr
    assert words[3] == f"10.0.0.12:1,train-worker-0.{SERVICE}:1"


def test_without_a_command_it_says_so(launch):
    done, _, _ = launch()
    assert done.returncode == 1
    assert "no command; write it after the name, as in: tfdist-launcher python train.py" in done.stderr
