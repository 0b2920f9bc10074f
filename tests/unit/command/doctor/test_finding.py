"""The report as text and JSON."""

from __future__ import annotations

from tfdist.command.doctor.finding import BROKEN, NOTE, Finding, any_broken, as_json, as_text

FINDINGS = [
    Finding("software", "tfdist", "0.1.0"),
    Finding("GPU", "NCCL", "none was found. Tried:\n  a.so: no\n  b.so: no", BROKEN, "install it"),
    Finding("GPU", "kernel cache", "cannot be written", NOTE, " ".join(["words"] * 30)),
]


def test_text() -> None:
    assert as_text(FINDINGS).splitlines() == [
        "software",
        "  ok      tfdist        0.1.0",
        "",
        "GPU",
        "  broken  NCCL          none was found. Tried:",
        "                        a.so: no",
        "                        b.so: no",
        "                        -> install it",
        "  note    kernel cache  cannot be written",
        "                        -> words words words words words words words words words words words words",
        "                           words words words words words words words words words words words words",
        "                           words words words words words words",
        "",
        "broken: NCCL",
    ]


def test_text_where_all_is_well() -> None:
    assert as_text(FINDINGS[:1]).splitlines()[-1] == "everything found works"
    assert as_text([Finding("GPU", "a", "")]).splitlines()[1] == "  ok      a"


def test_json() -> None:
    assert as_json(FINDINGS)["state"] == "broken"
    assert as_json(FINDINGS[:1]) == {
        "state": "ok",
        "findings": [{"group": "software", "name": "tfdist", "text": "0.1.0", "state": "ok", "remedy": ""}],
    }


def test_a_note_is_no_fault() -> None:
    assert not any_broken([FINDINGS[0], FINDINGS[2]])
    assert any_broken(FINDINGS)
