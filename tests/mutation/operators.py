"""Mutants of a source file: one comparison, number, operator, return or statement changed in each.

Left alone: docstrings, annotations, imports, decorators, what is in a `raise` (that it is raised at
all is mutated), and protocols, which only say what others do.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_Change = tuple[ast.AST, ast.AST]  # a node and what replaces it

_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_LEFT_ALONE = (ast.Import, ast.ImportFrom, ast.JoinedStr)


@dataclass(frozen=True, eq=False)
class Mutant:
    """A file with one thing changed.

    Attributes:
        number: of the line, from 1.
        line: its text, stripped.
        change: in words: "a < b → a <= b".
        tree: of the whole file, to be compiled.
        in_function: whether the change is in the body of a function, so that only its code changes.
    """

    number: int
    line: str
    change: str
    tree: ast.Module
    in_function: bool


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of its lines."""
    tree, lines = ast.parse(source), source.splitlines()
    places = sorted(_places(tree, False), key=lambda at: (at[0].lineno, at[0].col_offset))
    for node, in_function in places:
        for changed in _changes(node):
            ast.copy_location(changed, node)
            yield Mutant(
                node.lineno,
                lines[node.lineno - 1].strip(),
                f"{_told(node)} → {_told(changed)}",
                _with(tree, node, changed),
                in_function,
            )


def _told(node: ast.AST) -> str:
    if isinstance(node, ast.Pass):
        return "nothing"
    if isinstance(node, ast.If):
        return f"if {_told(node.test)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 120 else f"{text[:119]}…"


def _places(root: ast.AST, in_function: bool) -> Iterator[tuple[ast.expr | ast.stmt, bool]]:
    """Yield the nodes that may be changed, and whether they are in the body of a function."""
    for field, child in _children(root):
        if isinstance(child, _LEFT_ALONE) or _is_docstring(child) or _is_protocol(child):
            continue
        inside = in_function or (isinstance(root, ast.FunctionDef) and field == "body")
        if isinstance(child, ast.expr | ast.stmt):
            yield child, inside
        if not isinstance(child, ast.Raise):
            yield from _places(child, inside)


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        items = value if isinstance(value, list) else [value]
        yield from ((field, item) for item in items if isinstance(item, ast.AST))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
    )


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    yield from _of_a_statement(node) if isinstance(node, ast.stmt) else _of_an_expression(node)


def _of_a_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.AugAssign() if type(node.op) in _ARITHMETIC:
            yield ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
            yield ast.Pass()
        case ast.If() if not _has_an_opposite(node.test):
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Assert() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case _:
            pass


def _of_an_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for table in (_BOUNDARY, _OPPOSITE):
                    if other := table.get(type(operator)):
                        ops: list[ast.cmpop] = [*node.ops]
                        ops[index] = other()
                        yield ast.Compare(node.left, ops, node.comparators)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant():
            yield from _constants(node)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Call():
            yield from _calls(node)
        case _:
            pass


def _has_an_opposite(test: ast.expr) -> bool:
    """Whether turning the test round is a mutant of the test's own already."""
    single = isinstance(test, ast.Compare) and len(test.ops) == 1
    return single or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """Two arguments swapped, one left out, or a method in a chain of them."""
    if len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
        first, second, *rest = node.args
        yield ast.Call(node.func, [second, first, *rest], node.keywords)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            others = [*node.keywords[:index], *node.keywords[index + 1 :]]
            yield ast.Call(node.func, node.args, others)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        yield node.func.value


def _constants(node: ast.Constant) -> Iterator[ast.expr]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(2.0 * value if value else 1.0)
    elif isinstance(value, str):
        yield ast.Constant(f"{value}, changed")


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(tree: ast.Module, node: ast.AST, changed: ast.AST) -> ast.Module:
    """Return a copy of the tree in which one node is another; the tree stays as it is."""
    memo = {id(node): copy.deepcopy(changed)}
    found: ast.Module = copy.deepcopy(tree, memo)
    return ast.fix_missing_locations(found)
