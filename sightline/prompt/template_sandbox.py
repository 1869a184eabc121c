"""The sandbox that chat templates run in: code that pays for what it does, from a budget (template_budget.py)."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import object_type_repr

from sightline.prompt.template_budget import (
    CHARACTERS,
    COMPARING,
    FREE,
    GROWING,
    active,
    check_brace_format,
    concat,
    copied,
    held,
    is_wide_percent_format,
    joined,
    paid,
    pay_arguments,
    pay_method,
    pay_operation,
    paying_filter,
    paying_range,
    paying_test,
    text_of,
)

# For web pages, and slow on texts that are made for it.
_LEFT_OUT_FILTERS, _LEFT_OUT_GLOBALS = ("urlize", "striptags", "wordwrap", "xmlattr", "pprint"), ("lipsum",)


class _Generator(CodeGenerator):
    """Writes the same code as its base, and has it pay."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.body = _Paying(node.body)
        if node.test is not None:  # entries that do not pass it never come to the body
            node.test = nodes.And(_expression("pay()", node.test), node.test, lineno=node.test.lineno)
        super().visit_For(node, frame)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> tuple[Frame, MacroRef]:
        node.body = _Paying(node.body)
        return super().macro_body(node, frame)

    def write_commons(self) -> None:
        """What all functions of a template begin with. Names of its own variables begin otherwise."""
        super().write_commons()
        self.writeline("pay, paid, text, joined, copied, held = environment.hooks()")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if isinstance(nodes, _Paying):
            self.writeline("pay()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """To compare with a constant is cheap whatever the other value is."""
        if any(_is_constant(value) for value in (node.expr, *(operand.expr for operand in node.ops))):
            super().visit_Compare(node, frame)
            return
        self.write("(paid(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("[")
        self._entries(node.items, frame)
        self.write("]")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("(")
        self._entries(node.items, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for pair in node.items:
            self._entry(pair.key, frame)
            self.write(": ")
            self._entry(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _entries(self, entries: Iterable[nodes.Expr], frame: Frame) -> None:
        for entry in entries:
            self._entry(entry, frame)
            self.write(", ")

    def _entry(self, node: nodes.Expr, frame: Frame) -> None:
        """Paid for with all that is in it: a list that has another twice, which has another twice and so on would have a size
        that nothing can compare, hash or write."""
        if isinstance(node, (nodes.Const, nodes.List, nodes.Tuple, nodes.Dict)):
            self.visit(node, frame)
            return
        self.write("held(")
        self.visit(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("copied(")
        self.visit(node.node, frame)
        self.write(")[")
        self.visit(node.arg, frame)
        self.write("]")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("(" if isinstance(node, nodes.Concat) else "text(")

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        """As in most templates: a format that is written down, and can be checked now."""
        form = node.left.value if isinstance(node.left, nodes.Const) else None
        if not isinstance(form, str) or is_wide_percent_format(form):
            super().visit_Mod(node, frame)
            return
        self.write(f"({form!r} % paid(")
        self.visit(node.right, frame)
        self.write("))")


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)


class _Paying(list[nodes.Node]):
    """What a loop or a macro does each time."""


def _expression(code: str, node: nodes.Node) -> nodes.Expr:
    """Code as an expression of a template, which no source can have."""
    made: nodes.InternalName = object.__new__(nodes.InternalName)
    nodes.Node.__init__(made, code, lineno=node.lineno)
    return made


class _Undefined(Undefined):
    """Its message does not write down what nobody knows the size of."""

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint is None and not isinstance(self._undefined_name, (str, int)):
            return f"{object_type_repr(self._undefined_obj)} has no such element"
        return str(super()._undefined_message)


class BudgetEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which templates pay for what they do."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(undefined=_Undefined, **options)
        self.filters.update(filters)
        for name in _LEFT_OUT_FILTERS:
            del self.filters[name]
        for name in _LEFT_OUT_GLOBALS:
            del self.globals[name]
        for name, function in self.filters.items():
            if name not in FREE:
                self.filters[name] = paying_filter(name, function)
        for name in COMPARING:
            self.tests[name] = paying_test(self.tests[name])
        self.globals["range"] = paying_range
        self.concat = concat  # type: ignore[method-assign]

    def hooks(self) -> tuple[Callable[..., Any], ...]:
        """For the code that is generated."""
        return active.budget.step, paid, text_of, joined, copied, held

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and (
            type(left) is int or (type(left) is type(right) is str and len(left) + len(right) < CHARACTERS)
        ):
            return left + right
        pay_operation(operator, left, right)
        return self.binop_table[operator](left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_brace_format(value.__self__)
            paid((*args, kwargs))
            return wrapped(*args, **kwargs)

        return functools.update_wrapper(checked, wrapped)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(obj) is Macro:  # it pays inside, but for what it was not declared with
            if len(args) > obj._argument_count or obj.catch_kwargs:
                pay_arguments(args[obj._argument_count :], kwargs)
        else:
            owner = getattr(obj, "__self__", None)
            if isinstance(owner, (str, bytes, int)):
                if type(owner) is not str or len(owner) >= CHARACTERS or obj.__name__ in GROWING:
                    args = tuple(list(value) if isinstance(value, Iterator) else value for value in args)
                    pay_method(owner, obj.__name__, args, kwargs)
            else:
                if getattr(obj, "__name__", "") == "fromkeys":
                    raise SecurityError("dict.fromkeys is not available")
                if isinstance(owner, (list, tuple, dict)):
                    copied(owner)
                pay_arguments(args, kwargs)
            if not self.is_safe_callable(obj):
                raise SecurityError(f"{obj!r} is not safely callable")
        return context.call(obj, *args, **kwargs)
