"""What decides a user's class: the files that it stands in, or its code, where it was typed and stands in none."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None))
UNTOLD = {  # which Python writes into a class, or registration
    *("__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__annotations__", "needs"),
    *("__annotate_func__", "__annotations_cache__"),
}


def is_typed(cls: type) -> bool:
    """Whether a class stands in no file, but in a notebook or an interpreter, or came from its standard input."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ == "__main__" and not (file and Path(file).is_file())


def content(value: Any, within: Sequence[object] = ()) -> object:
    """What decides a function or class that stands in no file: its code, and what that names there; else the value.

    Args:
        value: The function, class or value.
        within: What it is named by, which may name itself.
    """
    if isinstance(value, CodeType):
        return [value.co_code.hex(), value.co_names, [content(one, within) for one in value.co_consts]]
    if isinstance(value, staticmethod | classmethod):
        return content(value.__func__, within)
    if isinstance(value, property):
        return [content(one, within) for one in (value.fget, value.fset, value.fdel)]
    if isinstance(value, tuple | list):
        return [content(one, within) for one in value]
    if isinstance(value, dict):
        return [[repr(key), content(one, within)] for key, one in value.items()]
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    if not isinstance(value, FunctionType | type):
        return repr(value) if isinstance(value, PLAIN) else type(value).__qualname__
    if value.__module__ != "__main__" or value in within:
        return value.__qualname__
    within = [*within, value]
    if isinstance(value, type):
        own = {name: one for name, one in vars(value).items() if name not in UNTOLD}
        return [[content(base, within) for base in value.__bases__], {k: content(v, within) for k, v in own.items()}]
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    named = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
    there = {name: content(one, within) for name, one in named.items() if not isinstance(one, list)}  # lists are logs
    beside = (value.__defaults__, value.__kwdefaults__, *cells)
    return [content(value.__code__, within), [content(one, within) for one in beside], there]


def _names(code: CodeType) -> set[str]:
    """All that code names, the functions and comprehensions inside it too."""
    return set(code.co_names).union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))


def files_of(module: ModuleType) -> set[Path]:
    """A module's file and those of the modules it names that lie in the same folder or below."""
    if not getattr(module, "__file__", None):
        return set()
    own = Path(str(module.__file__)).resolve()
    named = {getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in vars(module).values()}
    files = {
        Path(sys.modules[name].__file__ or "").resolve()
        for name in named
        if isinstance(name, str) and getattr(sys.modules.get(name), "__file__", None)
    }
    return {own, *(path for path in files if path.is_relative_to(own.parent) and "site-packages" not in path.parts)}
