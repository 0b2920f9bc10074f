"""The lines of servers, where nobody reads them."""

import concurrent.futures
import os

from tfdist.data_service.process.log import LIMIT_BYTES, Log


def test_lines_that_nobody_reads_are_counted():
    reader, writer = os.pipe()
    log = Log(writer)
    lines = 2 * LIMIT_BYTES // 1000
    for number in range(lines):
        log.show(f"{number} " + "x" * 1000)
    data = b""
    while data.count(b"\n") < LIMIT_BYTES // 1010:
        data += os.read(reader, 1 << 16)
    # What is left may be more than the pipe holds, and what nobody reads while the log is closed is dropped.
    with open(reader, "rb") as pipe, concurrent.futures.ThreadPoolExecutor() as threads:
        rest = threads.submit(pipe.read)
        log.show("last")
        log.close()
        os.close(writer)
        data += rest.result(timeout=60)
    *shown, missed, last = data.decode().splitlines()
    assert [int(line.split()[0]) for line in shown] == list(range(len(shown)))
    assert missed == f"[data-service] {lines - len(shown)} lines were dropped because nobody read them"
    assert last == "last"


def test_reader_that_has_gone():
    reader, writer = os.pipe()
    os.close(reader)
    log = Log(writer)
    for _ in range(3):
        log.show("x" * LIMIT_BYTES)
    log.close()
    os.close(writer)
