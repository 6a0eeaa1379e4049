"""The manifest of calls: one entry for each, with what it takes, what it asks of the core, and what it answers.

Every face has these calls under these names, or says why not. From the manifest come the functions that Dynamo traces,
PyTorch's fake kernels and batching rules, JAX's abstract shapes, the table of calls in the docs, and the vocabulary of
the contract that all faces are tested by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``values`` have the table's value dtype and shape, of each column in a table with columns; the others are one for
#: each key: ``rows`` int64, the rest bool. ``size`` is a single int64.
Answer = Literal["values", "found", "rows", "is_new", "erased", "size"]
#: What comes after the keys, in the order of the parameters.
Parameter = Literal["values", "default", "op"]


@dataclass(frozen=True)
class Signature:
    """One call."""

    name: str
    #: What the core is asked for, or "whole": the call takes no keys.
    request: Literal["lookup", "change", "erasure", "whole"]
    takes: tuple[Parameter, ...] = ()
    answers: tuple[Answer, ...] = ()
    #: Of a change: what becomes of the values of keys that are there. None: ``op`` says it.
    action: Literal["keep", "assign"] | None = None
    #: What absent keys are: "default", the call's, the table's or zeros; "given", as default, but one has to be there;
    #: "error", a KeyError, unless a default is given or, in a lookup, the table has one.
    absent: Literal["default", "given", "error"] = "default"
    #: What a table needs for it: nothing, values, rows in a row storage, or that it has no values (a set).
    needs: Literal["", "values", "rows", "set"] = "values"
    #: What may be left out: a default, and the values of new rows, which have initial ones.
    optional: tuple[Parameter, ...] = ("default",)
    #: Python's own method, where the call is written with syntax.
    special: str = ""

    @property
    def reads_all(self) -> bool:
        """Are the values that it answers those of all columns, and not only of those that are given?"""
        return "values" in self.answers and "op" not in self.takes

    @property
    def method(self) -> str:
        """The name of the method of HashTable."""
        return self.special or self.name


_CALLS = (
    Signature("insert", "change", ("values",), ("is_new",), "keep"),
    Signature("insert_or_assign", "change", ("values",), ("is_new",), "assign"),
    Signature("setitem", "change", ("values",), (), "assign", special="__setitem__"),
    Signature("insert_or_apply", "change", ("values", "op"), ("is_new",)),
    Signature("apply_and_find", "change", ("values", "op"), ("values", "is_new")),
    Signature("find_or_insert", "change", ("values",), ("rows", "is_new"), "keep", needs="rows", optional=("values",)),
    Signature("setdefault", "change", ("default",), ("values",), "keep", "given"),
    Signature("add", "change", (), ("is_new",), "keep", needs="set"),
    Signature("find", "lookup", ("default",), ("values", "found")),
    Signature("get", "lookup", ("default",), ("values",), absent="given"),
    Signature("getitem", "lookup", (), ("values",), absent="error", special="__getitem__"),
    Signature("contains", "lookup", (), ("found",), needs=""),
    Signature("has", "lookup", needs="", special="__contains__"),
    Signature("rows", "lookup", (), ("rows",), needs="rows"),
    Signature("erase", "erasure", (), ("erased",), needs=""),
    Signature("delete", "erasure", absent="error", needs="", special="__delitem__"),
    Signature("pop", "erasure", ("default",), ("values",), absent="error"),
    Signature("popitem", "whole"),
    Signature("size", "whole", (), ("size",), needs="", special="__len__"),
    Signature("keys", "whole", needs=""),
    Signature("values", "whole"),
    Signature("items", "whole"),
    Signature("clear", "whole", needs=""),
    Signature("reserve", "whole", needs=""),
)

#: By the names of the calls.
SIGNATURES: dict[str, Signature] = {call.name: call for call in _CALLS}
