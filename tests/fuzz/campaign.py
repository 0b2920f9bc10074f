"""Runs atheris on each target for so many seconds: python campaign.py SECONDS. Stops at the first that fails.

Inputs that break a target are left in the working folder as `crash-...`; give one to `test_target.py` as a seed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

MEMORY_MB, INPUT_SECONDS, START_SECONDS = 8192, 10, 120


def search(name, arguments):
    """In a process of its own, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["tfdist.launch", "tfdist.elastic", "tfdist.callbacks", "target"]):
        import target

    atheris.Setup([sys.argv[0], *arguments], getattr(target, name))
    atheris.Fuzz()


def campaign(seconds):
    from target import TARGETS

    for target, seeds in TARGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            for number, seed in enumerate(seeds):
                Path(folder, f"seed-{number}").write_bytes(seed)
            limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={INPUT_SECONDS}"]
            command = [sys.executable, __file__, target.__name__, *limits, "-max_len=6000", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + START_SECONDS)
        if done.returncode:
            sys.exit(f"{target.__name__} does not bear it:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        print(target.__name__, [text for text in done.stderr.splitlines() if text.startswith("Done")][-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        campaign(int(sys.argv[1]))
    else:
        search(sys.argv[1], sys.argv[2:])
