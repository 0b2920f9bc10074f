"""Reads C++ just far enough for the gates: tokens, includes, functions. It is a scanner, no parser or preprocessor.

It relies on code that clang-format has laid out: a logical `&&` has a space before it, a reference has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>//[^\n]*(?:\\\n[^\n]*)*|/\*.*?\*/)
  | (?P<raw>(?:u8|u|U|L)?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")
  | (?P<string>(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
  | (?P<char>(?:u8|u|U|L)?'(?:\\.|[^'\\\n])+')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark>::|->|&&|\|\||.)
    """,
    re.VERBOSE | re.DOTALL,
)
DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w*)((?:[^\n\\]|\\\n|\\.)*)")
INCLUDE = re.compile(r'\s*(<[^>]+>|"[^"]+")')
BRANCHES = frozenset({"if", "for", "while", "case", "catch", "||", "?", "and", "or"})
TYPE_WORDS = frozenset({"class", "struct", "union", "enum"})
# Words that a parenthesis may follow without being the parameter list of a function.
NOT_A_NAME = frozenset({"alignas", "decltype", "explicit", "noexcept", "requires", "__attribute__", "__declspec"})
OPENERS = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """One token, the line it starts on (from 1), and whether white space stands before it."""

    text: str
    line: int
    spaced: bool


class Directive(NamedTuple):
    """A preprocessor line: its word and what follows."""

    word: str
    rest: str
    line: int


@dataclass(frozen=True)
class Function:
    """A function with a body. A lambda inside it is part of it."""

    name: str
    line: int
    end_line: int
    parameters: int
    complexity: int

    @property
    def lines(self) -> int:
        return self.end_line - self.line + 1


class CppSyntaxError(ValueError):
    """The scanner lost its place, so nothing it could say about the file would be true."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def tokenize(text: str) -> tuple[list[Token], list[Directive]]:
    """Tokens without comments; preprocessor lines are returned apart. Of a string only the quotes are kept."""
    tokens: list[Token] = []
    directives: list[Directive] = []
    position, line, spaced, line_start = 0, 1, True, True
    while position < len(text):
        directive = DIRECTIVE.match(text, position) if line_start else None
        match = directive or TOKEN.match(text, position)
        assert match is not None  # the last alternative of TOKEN takes any character
        if directive:
            directives.append(Directive(directive.group(1), directive.group(2), line))
        elif match.lastgroup in ("space", "comment"):
            spaced = True
            line_start = line_start or "\n" in match.group()
        else:
            quoted = match.lastgroup in ("raw", "tag", "string", "char")
            tokens.append(Token('""' if quoted else match.group(), line, spaced))
            spaced, line_start = False, False
        line += match.group().count("\n")
        position = match.end()
    return tokens, directives


def includes(text: str) -> list[tuple[int, str]]:
    """Every `#include` as (line, target), the target with its quotes or brackets."""
    found = []
    for directive in tokenize(text)[1]:
        target = INCLUDE.match(directive.rest)
        if directive.word == "include" and target:
            found.append((directive.line, target.group(1)))
    return found


def conditionals_in_functions(text: str) -> list[tuple[int, str]]:
    """Every `#if` that stands inside a function body, as (line, name of the function)."""
    tokens, directives = tokenize(text)
    bodies = functions_of(tokens)
    return [
        (directive.line, body.name)
        for directive in directives
        if directive.word in ("if", "ifdef", "ifndef", "elif")
        for body in bodies
        if body.line < directive.line < body.end_line
    ]


def functions(text: str) -> list[Function]:
    """Every function, method and namespace-level lambda that has a body."""
    return functions_of(tokenize(text)[0])


def functions_of(tokens: list[Token]) -> list[Function]:
    found: list[Function] = []
    partner = _partners(tokens)
    index = start = 0
    while index < len(tokens):
        text = tokens[index].text
        if text == "{":
            start = _after_template(tokens, partner, start)
            function = _function_at(tokens, partner, start, index)
            if function:
                found.append(function)
            if function or not _opens_scope(tokens, partner, start, index):
                index = partner[index]
                # A body ends a declaration; a braced value, or a lambda inside a call, does not.
                if function and not _inside_parentheses(tokens, partner, start, index):
                    start = index + 1
            else:
                start = index + 1
        elif text in (";", "}") or (text == ":" and tokens[index - 1].text in ("public", "private", "protected")):
            start = index + 1
        index += 1
    return found


def _partners(tokens: list[Token]) -> dict[int, int]:
    """The other end of every bracket, both ways."""
    partner: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.text in OPENERS:
            opened.append(index)
        elif token.text in OPENERS.values():
            if not opened or OPENERS[tokens[opened[-1]].text] != token.text:
                raise CppSyntaxError(token.line, f"'{token.text}' closes nothing. Is a bracket opened under #if only?")
            partner[index] = opened.pop()
            partner[partner[index]] = index
    if opened:
        token = tokens[opened[-1]]
        raise CppSyntaxError(token.line, f"'{token.text}' is never closed. Is a bracket closed under #if only?")
    return partner


def _top_level(tokens: list[Token], partner: dict[int, int], start: int, end: int) -> Iterator[int]:
    """Indices from start to end that are inside no bracket; of a bracket, its opening."""
    index = start
    while index < end:
        yield index
        index = partner[index] + 1 if tokens[index].text in OPENERS else index + 1


def _after_template(tokens: list[Token], partner: dict[int, int], start: int) -> int:
    """Where the declaration itself starts, behind any `template <...>`."""
    while tokens[start].text == "template":
        depth = 0
        for index in _top_level(tokens, partner, start + 1, len(tokens)):
            depth += {"<": 1, ">": -1}.get(tokens[index].text, 0)
            if depth <= 0:
                break
        start = index + 1
    return start


def _inside_parentheses(tokens: list[Token], partner: dict[int, int], start: int, index: int) -> bool:
    return any(tokens[i].text == "(" and partner[i] > index for i in range(start, index))


def _opens_scope(tokens: list[Token], partner: dict[int, int], start: int, brace: int) -> bool:
    """Whether this brace opens a namespace, a class or an `extern "C"` block: a place to look for functions in."""
    words = [tokens[i].text for i in _top_level(tokens, partner, start, brace)]
    if "=" in words or _inside_parentheses(tokens, partner, start, brace):
        return False
    return bool(TYPE_WORDS & set(words)) or "namespace" in words or words == ["extern", '""']


def _function_at(tokens: list[Token], partner: dict[int, int], start: int, brace: int) -> Function | None:
    """The function whose body opens at `brace`, or None where the brace is something else."""
    opening = _lambda_parameters(tokens, partner, start, brace)
    name = "lambda"
    if opening is None:
        if _inside_parentheses(tokens, partner, start, brace):
            return None
        opening = _parameter_list(tokens, partner, start, brace)
        if opening is None or _is_member_initializer(tokens, partner, opening, brace):
            return None
        name = _name_before(tokens, start, opening)
    elif start < brace:
        name = f"{tokens[start].text} lambda"
    end = partner[brace]
    body = tokens[brace : end + 1]
    parameters = 0 if opening < 0 else _count_parameters(tokens, partner, opening)
    line = tokens[brace if opening < 0 else opening].line if name.endswith("lambda") else tokens[start].line
    return Function(name, line, tokens[end].line, parameters, 1 + sum(map(_is_branch, body)))


def _is_branch(token: Token) -> bool:
    return token.text in BRANCHES or (token.text == "&&" and token.spaced)


def _lambda_parameters(tokens: list[Token], partner: dict[int, int], start: int, brace: int) -> int | None:
    """Where the parameters of a lambda open (-1 if it has none written), or None where `brace` opens no lambda body."""
    for index in range(brace - 1, start - 1, -1):
        text = tokens[index].text
        if text == "]":
            before = tokens[partner[index] - 1].text if partner[index] > start else ""
            introduces = before in ("(", ",", "=", "return", "{", "&&", "||", "?", ":", "")
            return -1 if introduces and index == brace - 1 else None
        if text == ")":
            opening = partner[index]
            if opening > start and tokens[opening - 1].text == "]":
                before_capture = partner[opening - 1] - 1
                is_attribute = before_capture >= 0 and tokens[before_capture].text == "["
                is_index = before_capture >= start and (tokens[before_capture].text.isidentifier())
                return None if is_attribute or (is_index and tokens[before_capture].text != "return") else opening
            return None
        if text in (";", "{", "}", "(", "="):
            return None
    return None


def _parameter_list(tokens: list[Token], partner: dict[int, int], start: int, brace: int) -> int | None:
    """Where the parameter list of the declaration from start to brace opens."""
    candidates = []
    for index in _top_level(tokens, partner, start, brace):
        text = tokens[index].text
        previous = [token.text for token in tokens[max(start, index - 2) : index]]
        if text == "=" and "operator" not in previous:
            return None
        if text == ":":
            break
        if text == "(" and previous and previous[-1] != "operator" and previous[-1] not in NOT_A_NAME:
            candidates.append(index)
    # A macro in capitals before or behind the function is not its name, unless there is no other, as in TEST(a, b).
    own = [index for index in candidates if not tokens[index - 1].text.isupper()]
    return next(iter(own or candidates), None)


def _is_member_initializer(tokens: list[Token], partner: dict[int, int], opening: int, brace: int) -> bool:
    """Whether `brace` gives a member its value in a constructor's list, as in `: size_{3}`."""
    after = range(partner[opening] + 1, brace)
    in_list = any(tokens[i].text == ":" for i in after)
    previous = tokens[brace - 1].text
    return in_list and (previous.isidentifier() or previous == ">")


def _name_before(tokens: list[Token], start: int, opening: int) -> str:
    """The qualified name that ends before `opening`: `Engine::Submit`, `~Engine`, `Half::operator==`."""
    first = opening - 1
    if not tokens[first].text.isidentifier():
        first = next((i for i in range(first, start - 1, -1) if tokens[i].text == "operator"), first)
    angles = 0
    while first > start:
        angles += {">": 1, "<": -1}.get(tokens[first].text, 0)
        joined = tokens[first].text in ("::", "~", "<") or tokens[first - 1].text in ("::", "~")
        if angles <= 0 and not joined:
            break
        first -= 1
    return "".join(token.text for token in tokens[first:opening])


def _count_parameters(tokens: list[Token], partner: dict[int, int], opening: int) -> int:
    inside = tokens[opening + 1 : partner[opening]]
    if not inside or [token.text for token in inside] == ["void"]:
        return 0
    count, depth, angles = 1, 0, 0
    for token in inside:
        if token.text in OPENERS:
            depth += 1
        elif token.text in OPENERS.values():
            depth -= 1
        elif depth == 0 and token.text in "<>":
            angles += 1 if token.text == "<" else -1
        elif depth == 0 and angles <= 0 and token.text == ",":
            count += 1
    return count
