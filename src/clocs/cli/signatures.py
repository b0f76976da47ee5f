"""Options of a command, read from the source of the functions that it calls.

Importing such a function may import torch, which takes seconds. So its signature, its types and its
docstring are read with `ast`, and nothing is imported: the first line of the docstring is the help
of the command, `Args` are the texts of its options.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent.parent  # the folder of the package's folder
_SIMPLE = {"str": "text", "Path": "path", "int": "int", "float": "float", "bool": "flag"}
_SEQUENCES = {"Sequence", "list", "tuple"}


@dataclass(frozen=True)
class Parameter:
    """Something that can be typed after the command's name.

    Attributes:
        name: The keyword of the Python function.
        text: What it is.
        kind: 'text', 'path', 'int', 'float', 'flag', 'names' (with commas) or 'pairs' (a=b,c=d).
        choices: All valid words; empty where any is valid.
        several: Whether it can be given more than once.
        required: Whether it has no default.
        default: Its value where none is given; None where that depends on others.
    """

    name: str
    text: str = ""
    kind: str = "text"
    choices: tuple[str, ...] = ()
    several: bool = False
    required: bool = False
    default: Any = None


@dataclass(frozen=True)
class Function:
    """What a Python function says about itself."""

    summary: str
    description: str
    parameters: dict[str, Parameter]


def first_line(module: str, name: str) -> str:
    """The first line of a function's docstring, found without parsing its module."""
    pattern = rf'^def {name}\(.*?"""(.+?)(?:"""|\n)'
    found = re.search(pattern, _file(module).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def read_function(module: str, name: str, *, spread: tuple[str, ...] = ()) -> Function:
    """A function's signature and docstring, with the fields of dataclasses that are `spread`.

    Parameters whose values cannot be typed, such as callbacks, are left out.
    """
    home, node = _find(module, name) or (module, None)
    if not isinstance(node, ast.FunctionDef):
        raise ValueError(f"{module} has no function {name}")
    head, texts = _docstring(node)
    given = node.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + [*given.defaults]
    each = [*zip(given.args, defaults, strict=True)]
    each += [(given.vararg, None)] if given.vararg else []
    each += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    found: dict[str, Parameter] = {}
    for argument, default in each:
        if argument.arg in spread:
            found |= _fields(home, argument.annotation)
            continue
        made = _parameter(home, argument.arg, argument.annotation, default)
        if made is not None:
            if argument is given.vararg:
                made = replace(made, several=True, required=False)
            found[made.name] = replace(made, text=texts.get(made.name, ""))
    summary, _, description = head.partition("\n\n")
    return Function(" ".join(summary.split()), description.strip(), found)


def read_names(package: str, kind: str) -> list[str]:
    """The names of the rows that modules of a package declare, such as `Method("cmsc", …)`."""
    pattern = re.compile(rf'^\w+ = {kind}\((?:\s*name=|\s*)"([^"]+)"', re.MULTILINE)
    files = sorted((SOURCE / package.replace(".", "/")).rglob("*.py"))
    return [name for file in files for name in pattern.findall(file.read_text("utf-8"))]


def read_options(package: str) -> dict[str, Parameter]:
    """The options that rows of a package declare with `Option(…)` or, as a field, `option(…)`."""
    found: dict[str, Parameter] = {}
    folders = {SOURCE / package.replace(".", "/")}
    for name, module in list(sys.modules.items()):  # folders that others have added
        if f"{name}.".startswith(f"{package}."):
            folders |= set(map(Path, getattr(module, "__path__", ())))
    for file in sorted({file for folder in folders for file in folder.rglob("*.py")}):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\b[Oo]ption\(", text) else ():
            made = _declared(node)
            if made is None:
                continue
            old = found.get(made.name)
            if old is not None and old.text != made.text:  # of two rows, or of one and its heirs
                both = bool(old.choices and made.choices)
                choices = dict.fromkeys((*old.choices, *made.choices)) if both else ()
                texts = f"{old.text} {made.text}"
                made = replace(made, text=texts, choices=tuple(choices), default=None)
            found[made.name] = made
    return found


def _declared(node: ast.AST) -> Parameter | None:
    """`Option("k", 20, "Neighbors")`, or a field `k: int = option(20, "Neighbors")`."""
    match node:
        case ast.Call(
            func=ast.Name(id="Option"), args=[ast.Constant(value=str(name)), *args], keywords=more
        ) if name:
            pass
        case ast.AnnAssign(
            target=ast.Name(id=name),
            value=ast.Call(
                func=ast.Name(id="option") | ast.Attribute(attr="option"), args=args, keywords=more
            ),
        ):
            pass
        case _:
            return None
    given = dict(zip(("default", "help", "kind"), args, strict=False))
    given |= {one.arg: one.value for one in more if one.arg}
    default = _value("", given.get("default"))
    stated = given.get("kind")
    kind = stated.id if isinstance(stated, ast.Name) else type(default).__name__
    text = _value("", given.get("help")) or ""
    return Parameter(
        name,
        f"{text.rstrip('.')}.",
        {"int": "int", "float": "float", "bool": "flag"}.get(kind, "text"),
        tuple(_value("", given.get("choices")) or ()),
        default=default,
    )


def _parameter(
    module: str, name: str, annotation: ast.expr | None, default: ast.expr | None
) -> Parameter | None:
    """None where its value cannot be typed."""
    kinds = dict(_kinds(module, annotation))
    value = _value(module, default)
    several = "sequence" in kinds and ("text" in kinds or "path" in kinds or value == ())
    for kind in ("flag", "path", "text", "float", "int"):
        if kind in kinds:
            break
    else:
        if "sequence" in kinds:
            kind = "text" if several else "names"
        elif "choices" in kinds or "pairs" in kinds:
            kind = "text" if "choices" in kinds else "pairs"
        else:
            return None
    choices = kinds.get("choices", ()) if set(kinds) <= {"choices", "text"} else ()
    if "choices" in kinds and not choices:
        kind = "text"  # such as a number or a word
    return Parameter(
        name, "", kind, choices, several=several, required=default is None, default=value
    )


def _kinds(module: str, node: ast.expr | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What an annotation admits, by kind; classes of ours, callbacks and None are left out."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _kinds(module, left)
            yield from _kinds(module, right)
        case ast.Name(id=name) if name in _SIMPLE:
            yield _SIMPLE[name], ()
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            each = words.elts if isinstance(words, ast.Tuple) else [words]
            yield "choices", tuple(ast.literal_eval(one) for one in each)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            yield from _kinds(module, first)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _SEQUENCES:
            if {"text", "path"} & dict(_kinds(module, inner)).keys():
                yield "sequence", ()
        case ast.Subscript(value=ast.Name(id="Mapping" | "dict")):
            yield "pairs", ()
        case ast.Name(id=name):
            home, meant = _find(module, name) or ("", None)
            if isinstance(meant, ast.expr):
                yield from _kinds(home, meant)


def _fields(module: str, annotation: ast.expr | None) -> dict[str, Parameter]:
    """The fields of a dataclass, or of `Dataclass | None`; as options, all may be left out."""
    for node in ast.walk(annotation) if annotation else ():
        home, made = _find(module, node.id) or ("", None) if isinstance(node, ast.Name) else ("", 0)
        if isinstance(made, ast.ClassDef):
            _, texts = _docstring(made)
            found = {}
            for field in made.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    name = field.target.id
                    one = _parameter(home, name, field.annotation, field.value)
                    if one is not None:
                        found[name] = replace(one, text=texts.get(name, ""), required=False)
            return found
    raise ValueError(f"a parameter of {module} is no dataclass")


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> tuple[str, dict[str, str]]:
    """What comes before `Args` or `Attributes`, and the text of each of these."""
    words = inspect.cleandoc(ast.get_docstring(node) or "")
    head, *rest = re.split(r"^(?:Args|Attributes):\n", words, maxsplit=1, flags=re.MULTILINE)
    head = re.split(r"^(?:Returns|Raises):\n", head, maxsplit=1, flags=re.MULTILINE)[0]
    listed = re.split(r"^\S", rest[0], maxsplit=1, flags=re.MULTILINE)[0] if rest else ""
    each = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return head.strip(), {name: " ".join(text.split()) for name, text in each}


def _value(module: str, node: ast.expr | None) -> Any:
    """A constant, also one with a name; None where it is computed."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        if module and isinstance(node, ast.Name):
            home, meant = _find(module, node.id) or ("", None)
            return _value(home, meant) if isinstance(meant, ast.expr) else None
        return None


@cache
def _file(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parsed(module: str) -> list[ast.stmt]:
    """The statements of a module, those for types alone among them."""
    body = ast.parse(_file(module).read_text("utf-8")).body
    return [*body, *(one for each in body if isinstance(each, ast.If) for one in each.body)]


def _find(module: str, name: str) -> tuple[str, ast.stmt | ast.expr] | None:
    """Where a name is defined, and its definition; None where that is not in this package."""
    for node in _parsed(module):
        match node:
            case ast.FunctionDef(name=own) | ast.ClassDef(name=own) if own == name:
                return module, node
            case ast.Assign(targets=[ast.Name(id=own)], value=value) if own == name:
                return module, value
            case ast.AnnAssign(target=ast.Name(id=own), value=value) if own == name and value:
                return module, value
            case ast.ImportFrom(module=str(other), names=names) if other.startswith("clocs"):
                for alias in names:
                    if (alias.asname or alias.name) == name and _file(other).is_file():
                        return _find(other, alias.name)
    return None
