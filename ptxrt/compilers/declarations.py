"""The names of a kernel's parameters, read in its C++ text: compilers tell the types alone.

A name that is not certain is left out: it may come from a macro of a header or in an ``#if``, or two definitions have
two names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from ptxrt.compilers._binary import Binary, ParamInfo
from ptxrt.compilers._cxx_text import hidden
from ptxrt.compilers._cxx_types import parts
from ptxrt.compilers._options import macro_lines

__all__ = ["parameter_names"]

_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w*)[ \t]*(.*)")
_WORD = re.compile(r"[^\W\d]\w*")
_WITH_PARENTHESES = re.compile(r"\b(alignas|__align__|__attribute__|decltype)\s*(?=\()")
_DECLARATOR = re.compile(r"\(\s*[*&]+\s*(?:const\s+)?([^\W\d]\w*)?\s*\)")
_QUALIFIER = re.compile(r"const|volatile|register|struct|class|enum|union|typename|template|__restrict|__\w+__")
_BUILT_IN = {"float", "double", "int", "unsigned", "signed", "char", "short", "long", "bool", "auto"}
# What a text may say of a type, as far as it cannot be a macro or a typedef.
_PLAIN = {("float",): "f32", ("double",): "f64", ("int",): "i32", ("unsigned",): "u32", ("unsigned", "int"): "u32"}
_UNKNOWN = "\1"
_MOST_MACROS = 1000

_Macros = dict[str, str | None]


def parameter_names(text: str, entry: str, binary: Binary, headers: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the name of each parameter of an entry, empty where it is not certain.

    Parameters
    ----------
    text
        The C++.
    entry
        As asked for: ``"ns::scale<float>"``.
    binary
        What became of it: the options, and the types, which the text's must not contradict.
    headers
        The texts of the headers that it includes. They may have the definition, too; a word that they define as a
        macro is no name.
    """
    params = binary.entries[binary.symbols[entry]].params or ()
    macros: _Macros = {}
    texts = [_directives(header, macros) for header in headers]
    macros = dict.fromkeys(macros)
    texts.append(_directives(macro_lines(binary.options) + text, macros))
    name = re.split(r"[<(]", entry.lstrip("&( "))[0].split("::")[-1].strip(" )")
    if not _WORD.fullmatch(name) or name in macros:
        return ("",) * len(params)
    lists = [part for plain in texts for part in _lists(plain, name)]
    found = [names for part in lists if (names := _names(part, params, macros)) is not None]
    return tuple(
        each[0] if len(set(each)) == 1 and _WORD.fullmatch(each[0]) else ""
        for each in zip_longest(("",) * len(params) if not found else found[0], *found[1:])
    )


def _directives(text: str, macros: _Macros) -> str:
    """Return a text without comments and directives; note its macros, with None for one that is not certain."""
    lines, depth = [], 0
    for line in hidden(_SPLICE.sub("", text)).split("\n"):
        directive = _DIRECTIVE.match(line)
        lines.append("" if directive else line)
        if directive is None:
            continue
        word, rest = directive.groups()
        depth += word.startswith("if") - (word == "endif")
        macro = _WORD.match(rest)
        if word in ("define", "undef") and macro:
            body = rest[macro.end() :]
            certain = word == "define" and not depth and not body.startswith("(")
            same = macros.get(macro[0], body.strip()) == body.strip()
            macros[macro[0]] = body.strip() if certain and same else None
    return "\n".join(lines)


def _lists(text: str, name: str) -> Iterator[str]:
    """Yield the parameter list of each definition of a function: parentheses behind its name, and a brace."""
    for match in re.finditer(rf"(?<!\w){name}\s*(?=[<(])", text):
        end = match.end()
        if text[end] == "<":
            end = _closed(text, end)
            end += len(text[end:]) - len(text[end:].lstrip())
        if text.startswith("(", end):
            after = _closed(text, end)
            if re.match(r"\s*(?:noexcept\s*)?\{", text[after:]):
                yield text[end + 1 : after - 1]


def _closed(text: str, at: int) -> int:
    """Return where the bracket that opens at `at` has closed; the text's end if it never does."""
    depth = 0
    for match in re.compile(r"[(<\[{]|[)>\]}]").finditer(text, at):
        depth += 1 if match[0] in "(<[{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _names(text: str, params: Sequence[ParamInfo], macros: _Macros) -> tuple[str, ...] | None:
    """Return the names in a parameter list, None where it cannot be that of these parameters."""
    expanded = _expanded(text, macros)
    listed = [part.strip() for part in parts(expanded)] if expanded.strip() not in ("", "void") else []
    if len(listed) != len(params) or _UNKNOWN in listed:  # a macro of its own may be any number of parameters
        return None
    names = list(map(_name, listed, params))
    return None if None in names else tuple(name or "" for name in names)


def _expanded(text: str, macros: _Macros) -> str:
    """Replace the macros that stand for words; those that are not certain become a mark."""
    for _ in range(_MOST_MACROS):
        word = next((match for match in _WORD.finditer(text) if match[0] in macros), None)
        if word is None:
            return text
        body = macros[word[0]]
        body = _UNKNOWN if body is None or re.search(rf"\b{word[0]}\b", body) else body
        text = f"{text[: word.start()]}{body}{text[word.end() :]}"
    return _UNKNOWN


def _name(text: str, param: ParamInfo) -> str | None:
    """Return a parameter's name, empty where it is not certain, None where the text is not that of this type."""
    text = re.sub(r"\[\[.*?\]\]", " ", text.partition("=")[0])
    while match := _WITH_PARENTHESES.search(text):
        type_ = "auto" if match[1] == "decltype" else ""
        text = f"{text[: match.start()]} {type_} {text[_closed(text, match.end()) :]}"
    while text != (text := re.sub(r"<[^<>]*>", "", text)):
        pass
    text = re.sub(r"(?:\w+\s*)?::\s*", "", text)
    if _UNKNOWN in text or "..." in text:
        return ""
    if match := _DECLARATOR.search(text):
        return match[1] or ""
    if "(" in text:
        return ""
    text, bracket, _ = text.partition("[")
    *before, behind = re.split("[*&]", text)
    words = _words(before[0] if before else behind)
    built_in = tuple(word for word in words if word in _BUILT_IN)
    address = bool(before or bracket)
    if address != (param.kind == "pointer") and param.kind and built_in and "auto" not in built_in:
        return None
    if _PLAIN.get(built_in, param.type) != param.type and param.type and len(before) + len(bracket) < 2:
        return None
    if before:
        words = _words(behind)
    elif not built_in:
        words = words[1:]  # behind the type
    names = [word for word in words if word not in _BUILT_IN]
    return names[0] if len(names) == 1 else ""


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if not _QUALIFIER.fullmatch(word)]
