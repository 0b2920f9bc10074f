"""The collectives as XLA gets them for a GPU: calls, attributes, token and refusals. No GPU runs any of it."""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass, field

import pytest

pytestmark = pytest.mark.slice("gpu-kernels")

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>\S+) = (?P<shape>\(.*?\)|\S+) (?P<op>[\w-]+)\((?P<operands>.*?)\)")
NUMBER = re.compile(r"(\w+) = (\S+) : (?:i64|f64)")
TEXT = re.compile(r'(\w+) = "([^"]*)"')


@dataclass
class Instruction:
    """One line of XLA's language."""

    line: str
    name: str
    shape: str
    op: str
    operands: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        found = re.search(r'custom_call_target="tfdist_(\w+)"', self.line)
        return found[1] if found else ""

    @property
    def shapes(self) -> list[str]:
        return re.findall(r"\w+\[[\d,]*\]", self.shape)

    @property
    def attributes(self) -> dict[str, str]:
        config = self.line.partition("backend_config=")[2]
        return dict(NUMBER.findall(config)) | dict(TEXT.findall(config))


def instructions(case: dict[str, str]) -> list[Instruction]:
    assert "error" not in case, case["error"]
    found = []
    for line in case["text"].splitlines():
        match = INSTRUCTION.match(line)
        if match:
            operands = [operand.split()[-1].lstrip("%") for operand in match["operands"].split(", ") if operand]
            found.append(Instruction(line, match["name"], match["shape"], match["op"], operands))
    return found


def calls(case: dict[str, str]) -> list[Instruction]:
    return [instruction for instruction in instructions(case) if instruction.target]


def test_each_collective_passes_the_token_in_place(compiled):
    found = calls(compiled["each kind"])
    assert [call.target for call in found] == ["allreduce", "reducescatter", "allgather", "broadcast", "broadcast"]
    for call in found:
        count = len(call.operands)
        assert call.shapes[-1] == "s64[]"
        assert len(call.shapes) == count
        assert f"output_to_operand_aliasing={{{{{count - 1}}}: ({count - 1}, {{}})}}" in call.line
        assert "api_version=API_VERSION_TYPED_FFI" in call.line
        assert "custom_call_has_side_effect=true" in call.line


def test_the_token_chains_the_calls_in_the_order_of_the_program(compiled):
    everything = {instruction.name: instruction for instruction in instructions(compiled["each kind"])}
    found = calls(compiled["each kind"])
    assert [call.attributes["label"] for call in found][:4] == ["first", "second", "third", "fourth"]
    assert everything[found[0].operands[-1]].op == "parameter"
    for before, after in itertools.pairwise(found):
        token = everything[after.operands[-1]]
        assert token.op == "get-tuple-element"
        assert token.operands == [before.name]
        assert f"index={len(before.shapes) - 1}" in token.line


def number(bits):
    """A factor is written as the bits of a double: "0x3FF0000000000000" is 1."""
    return struct.unpack(">d", bytes.fromhex(bits.removeprefix("0x")))[0]


def test_constant_factors_and_weight_are_attributes(compiled):
    (call,) = calls(compiled["constant factors"])
    assert call.shapes == ["f32[4]", "s64[]"]
    assert number(call.attributes["prescale"]) == 1 / 3  # to the last bit
    assert number(call.attributes["postscale"]) == -2
    assert (call.attributes["weight"], call.attributes["weighted"]) == ("1", "0")
    assert "multiply" not in {instruction.op for instruction in instructions(compiled["constant factors"])}
    scattered = calls(compiled["each kind"])[1]
    assert number(scattered.attributes["postscale"]) == 0.5
    assert "weight" not in scattered.attributes


def test_infinite_factor_reaches_the_engine_and_is_refused(compiled):
    (call,) = calls(compiled["factor that is not finite"])
    assert call.attributes["prescale"] == "0x7FF0000000000000"


def test_what_is_computed_from_the_topology_is_constant(compiled):
    (call,) = calls(compiled["factor of the topology"])
    assert number(call.attributes["prescale"]) == 0.25
    assert number(call.attributes["postscale"]) == 0.0625
    assert not calls(compiled["topology"])
    assert [line for line in instructions(compiled["topology"]) if line.op == "constant" and "constant(1)" in line.line]


# What a factor known only at run time is multiplied in.
WIDE = {"float16": "f32", "bfloat16": "f32", "float32": "f32", "float64": "f64"}
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


@pytest.mark.parametrize("dtype", WIDE)
def test_other_factors_are_multiplied_with_around_the_call(compiled, dtype):
    case = compiled[f"factor of data, {dtype}"]
    (call,) = calls(case)
    assert call.shapes == [f"{SHORT[dtype]}[4]", "s64[]"]
    assert number(call.attributes["prescale"]) == number(call.attributes["postscale"]) == 1
    everything = {instruction.name: instruction for instruction in instructions(case)}
    products = [line for line in everything.values() if line.op == "multiply" and line.shapes == [f"{WIDE[dtype]}[4]"]]
    assert len(products) == 2
    given = everything[call.operands[0]]
    assert (given.op, given.shapes) == ("convert", [f"{SHORT[dtype]}[4]"])
    assert everything[given.operands[0]] in products


def test_other_factors_of_whole_numbers_are_refused(compiled):
    assert "need a floating dtype" in compiled["factor of data, int32"]["error"]


@pytest.mark.parametrize("case", ["weight by shape", "weight from outside of a conditional"])
def test_the_weight_of_a_batch_is_known_by_its_shape(compiled, case):
    (call,) = calls(compiled[case])
    assert (call.attributes["weight"], call.attributes["weighted"]) == ("4", "1")


@pytest.mark.parametrize("case", ["weight of data", "weight after a collective"])
def test_another_weight_is_refused(compiled, case):
    error = compiled[case]["error"]
    assert "on a GPU must be a constant" in error
    assert "Remove jit_compile=True" in error


def test_inside_a_conditional(compiled):
    inside, outside = sorted(calls(compiled["in a conditional"]), key=lambda call: call.attributes["label"])
    assert (inside.attributes["label"], outside.attributes["label"]) == ("inside", "outside")
    assert number(inside.attributes["prescale"]) == 0.5
    everything = {instruction.name: instruction for instruction in instructions(compiled["in a conditional"])}
    token = everything[outside.operands[-1]]
    while token.op == "get-tuple-element":
        token = everything[token.operands[0]]
    assert token.op == "conditional"


def test_gradient(compiled):
    forward, backward = calls(compiled["gradient"])
    assert forward.attributes["label"] != backward.attributes["label"]
    assert number(backward.attributes["prescale"]) == 0.25


def test_what_is_started_and_awaited_is_in_place(compiled):
    found = calls(compiled["started"])
    assert [call.target for call in found] == ["start_allreduce", "start_allreduce", "await", "await"]
    assert [call.attributes["label"] for call in found] == ["first", "second", "first", "second"]
    for call in found:
        assert len(call.shapes) == len(call.operands)
        pairs = ", ".join(f"{{{i}}}: ({i}, {{}})" for i in range(len(call.operands)))
        assert f"output_to_operand_aliasing={{{pairs}}}" in call.line
        schedule = "EARLIEST" if call.target == "start_allreduce" else "LATEST"
        assert f"schedule=SCHEDULE_{schedule}" in call.line


@pytest.mark.parametrize("bucket", [0, 1])
def test_nothing_but_its_await_reads_what_is_started(compiled, bucket):
    everything = instructions(compiled["started"])
    found = calls(compiled["started"])
    start, waits = found[bucket], found[bucket + 2]
    token = f"index={len(start.shapes) - 1}"
    pending = {line.name for line in everything if start.name in line.operands and token not in line.line}
    assert pending == set(waits.operands[:-1])
    assert [line.name for line in everything if pending & set(line.operands)] == [waits.name]


def test_the_token_chains_what_is_started_and_awaited(compiled):
    everything = {instruction.name: instruction for instruction in instructions(compiled["started"])}
    for before, after in itertools.pairwise(calls(compiled["started"])):
        assert everything[after.operands[-1]].operands == [before.name]


def test_a_factor_of_data_is_multiplied_in_when_the_call_is_done(compiled):
    found = calls(compiled["started, with a factor of data"])
    assert [call.target for call in found] == ["allreduce", "allreduce", "await", "await"]


@pytest.mark.parametrize("name", ["barrier", "alltoall", "join"])
def test_what_has_no_form_says_what_to_do(compiled, name):
    error = compiled[name]["error"]
    assert f"Tfdist{name.title()} cannot be compiled by XLA" in error
    assert f"Call tfdist.{name} outside the function with jit_compile=True" in error


def test_handlers_of_the_calls(compiled):
    """One that said it is fit for CUDA graphs would be replayed without the agreement of the ranks."""
    collectives, apart = ("allreduce", "reducescatter", "allgather", "broadcast"), ("start_allreduce", "await")
    alone = ("barrier", "topology")
    assert compiled["CUDA"] == dict.fromkeys((*collectives, *apart), "execute") | dict.fromkeys(alone, "")
    assert compiled["Host"] == dict.fromkeys((*collectives, *alone), "execute") | dict.fromkeys(apart, "")
