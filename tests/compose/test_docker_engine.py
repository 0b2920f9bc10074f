"""What the engine of the tests puts back."""

import docker_engine

BEFORE = """\
*filter
:INPUT ACCEPT [1:2]
:FORWARD ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
COMMIT
"""
AFTER = """\
*filter
:INPUT ACCEPT [1:2]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
-A FORWARD -o docker0 -j DOCKER
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
"""
NAT = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"


def test_iptables_are_restored_and_new_tables_emptied():
    assert docker_engine.emptied(AFTER, BEFORE) == NAT
    assert docker_engine.emptied(AFTER, AFTER) == ""
    assert docker_engine.emptied(AFTER, "") == "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n" + NAT


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(docker_engine.shutil, "which", lambda name: None if "iptables" in name else name)
    monkeypatch.setattr(docker_engine.os, "geteuid", lambda: 0)
    assert docker_engine.lacks() == "no Docker engine answers, and to start one these are missing: iptables"
    monkeypatch.setattr(docker_engine.os, "geteuid", lambda: 1000)
    assert docker_engine.lacks() == "no Docker engine answers, and only root can start one"
