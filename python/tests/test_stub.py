# SPDX-License-Identifier: Apache-2.0
"""What type checkers are told of the extension: the names and parameters that it has."""

import ast
import pathlib

import ejk
from ejk import _core
from nanobind.stubgen import StubGen


def declared(stub: str) -> dict:
    """{name: parameters and their defaults, None for what is no function} of all that a stub declares."""
    found = {}

    def add(body, prefix=""):
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = None
                add(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                found[prefix + node.name] = parameters(node.args)
            elif isinstance(node, ast.AnnAssign):
                found[prefix + node.target.id] = None

    add(ast.parse(stub).body)
    return found


def parameters(given: ast.arguments) -> tuple:
    by_place = [[arg.arg for arg in group] for group in (given.posonlyargs, given.args, given.kwonlyargs)]
    defaults = [ast.literal_eval(default) for default in (*given.defaults, *given.kw_defaults)]
    others = [arg and arg.arg for arg in (given.vararg, given.kwarg)]
    return by_place, defaults, others


def test_the_stub_declares_what_the_extension_has():
    made = StubGen(_core, include_private=True, include_docstrings=False)
    made.put(_core)
    of_extension = declared(made.get())
    ours = declared((pathlib.Path(ejk.__file__).parent / "_core.pyi").read_text())
    assert ours == of_extension | {"__version__": None}  # which the generator leaves out
