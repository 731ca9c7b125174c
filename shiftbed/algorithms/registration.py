"""How algorithms are registered: under their names, with what registration says of them."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from shiftbed.algorithms.sources import content, files_of, is_typed
from shiftbed.errors import AlgorithmError, ShiftbedError, UnknownNameError
from shiftbed.hashing import digest
from shiftbed.hparams import SizeClass, Space
from shiftbed.registry import Registry, did_you_mean

if TYPE_CHECKING:
    from shiftbed.algorithms.base import Algorithm

Need = Literal["domain labels", "two domains", "images", "feature maps", "test batches"]
NEEDS: dict[str, str] = {
    "domain labels": "it must know which domain an example comes from",
    "two domains": "it is not defined for one training domain",
    "images": "inputs must be images",
    "feature maps": "the network must have convolutional stages",
    "test batches": "its prediction looks at the other images of a test batch",
}


class AlgorithmEntry(NamedTuple):
    """A registered algorithm: its class and what registration says of it."""

    cls: "type[Algorithm]"
    spaces: Callable[[str, SizeClass], Space]
    paper: str
    needs: tuple[Need, ...]
    selection: str | None
    revision: int | str
    separable: bool
    capturable: bool

    @property
    def about(self) -> str:
        """What it does, and where it departs from its paper: its docstring without what it lists of the code."""
        return inspect.cleandoc(self.cls.__doc__ or "").split("\n\nAttributes:")[0]

    @property
    def idea(self) -> str:
        """What it does, in a line."""
        return self.about.partition("\n")[0]

    def space(self, dataset: str = "", size_class: SizeClass = "large") -> Space:
        """Its own hyperparameters on a dataset."""
        space = self.spaces(dataset, size_class)
        if not isinstance(space, Space):
            raise AlgorithmError(
                f"The function in register(space=...) of {self.cls.__name__} must return a Space, not {space!r}."
            )
        return space


class AlgorithmRegistry(Registry[AlgorithmEntry]):
    """The algorithms; a wrapper around another one is a name too: `SWAD(CORAL)`."""

    def canonical_name(self, name: str) -> str:
        """The registered spelling, of a wrapper and of what it wraps."""
        outer, inner = _unwrapped(name)
        if inner is None:
            try:
                return super().canonical_name(name)
            except UnknownNameError as error:  # a sweep remembers its algorithms' names, not the files of pasted ones
                more = "If it is a class of yours, name its file with --code, or import it."
                raise UnknownNameError(f"{error} {more}") from None
        outer, inner = super().canonical_name(outer), self.canonical_name(inner)
        composed = f"{outer}({inner})"
        parts, known = (self[outer], self[inner]), self._entries.get(composed)
        if known is None or not _is_of(known, *parts):  # a class may have been registered again
            self.add(composed, _wrapped(composed, *parts))
        return composed

    def __getitem__(self, name: str) -> AlgorithmEntry:
        entry = super().__getitem__(name)
        # What stands in no file changes without a word, a helper of a notebook's class for instance.
        is_own = is_typed(entry.cls) and "(" not in entry.cls.__name__
        return entry._replace(revision=_source_revision(entry.cls)) if is_own else entry

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if "(" not in name)


def _unwrapped(name: str) -> tuple[str, str | None]:
    """`SWAD(CORAL)` as ("SWAD", "CORAL"); a plain name with None."""
    outer, bracket, rest = name.partition("(")
    return (outer.strip(), rest[:-1].strip()) if bracket and rest.endswith(")") else (name.strip(), None)


def _is_of(composed: AlgorithmEntry, outer: AlgorithmEntry, inner: AlgorithmEntry) -> bool:
    """Whether a wrapper was made of these two, and they are as they were then."""
    same = composed.cls.__base__ is outer.cls and getattr(composed.cls, "inner_class", None) is inner.cls
    return same and composed.revision == _revision(outer, inner)


def _revision(outer: AlgorithmEntry, inner: AlgorithmEntry) -> str:
    return f"{outer.revision}({inner.revision})"


def _wrapped(name: str, outer: AlgorithmEntry, inner: AlgorithmEntry) -> AlgorithmEntry:
    """The entry of a wrapper around another algorithm than ERM."""
    if not hasattr(outer.cls, "inner_class"):
        raise AlgorithmError(f"{name}: {outer.cls.__name__} wraps no other algorithm; only wrappers such as SWAD do.")
    needs = tuple(dict.fromkeys((*outer.needs, *inner.needs)))
    body = {
        "inner_class": inner.cls,
        "needs": needs,
        "takes_unlabeled": inner.cls.takes_unlabeled,
        "__doc__": outer.cls.__doc__,
        "__module__": outer.cls.__module__,
    }
    cls = type(name, (outer.cls,), body)
    return outer._replace(
        cls=cls,
        spaces=lambda dataset, size_class: inner.space(dataset, size_class) | outer.space(dataset, size_class),
        paper=f"{outer.paper}; {inner.paper}",
        needs=needs,
        revision=_revision(outer, inner),
        separable=outer.separable and inner.separable,
        capturable=outer.capturable and inner.capturable,
    )


ALGORITHMS = AlgorithmRegistry("algorithm", "shiftbed.algorithms")
BUILT_IN: set[str] = set()
AlgorithmClass = TypeVar("AlgorithmClass", bound="type[Algorithm]")


def register(
    *,
    space: Space | Callable[[str, SizeClass], Space] | None = None,
    paper: str = "",
    needs: tuple[Need, ...] = (),
    selection: str | None = None,
    revision: int = 1,
    separable: bool = False,
    capturable: bool = False,
) -> Callable[[AlgorithmClass], AlgorithmClass]:
    """Registers an algorithm under its class name.

    Args:
        space: Its own hyperparameters, beside the shared ones; or a function of the dataset's name and its size class.
        paper: Who proposed it.
        needs: What it cannot do without, of `NEEDS`.
        selection: The name of its own model-selection rule; None marks it incomplete in DomainBed's sense.
        revision: Raised whenever its results change. Classes outside this package get a hash of their file instead.
        separable: Its loss is a mean over examples, so that gradients of parts of a batch add up.
        capturable: A step draws on the host by `drawn` alone and branches on no value, so that a CUDA graph can replay
            it. Of a wrapper: the steps of the algorithm inside are all like its own, so that they can be replayed.
    """
    if space is not None and not (isinstance(space, Space) or callable(space)):
        raise AlgorithmError(f"register(space=...) takes a Space, or a function that makes one, not {space!r}.")
    given = space or Space()
    spaces = given if callable(given) else (lambda dataset, size_class: given)

    def wrap(cls: AlgorithmClass) -> AlgorithmClass:
        from shiftbed.algorithms.base import Algorithm  # which registers its own by this function

        if not issubclass(cls, Algorithm):
            raise AlgorithmError(
                f"{cls.__name__} builds on no Algorithm; let it build on Algorithm or ERM of shiftbed.algorithms, or "
                "of shiftbed.algorithms.domainbed if it was written for DomainBed."
            )
        ours = cls.__module__.startswith("shiftbed.")
        if not ours and cls.__name__ in BUILT_IN:
            raise AlgorithmError(f"{cls.__name__} is an algorithm of shiftbed; give your class another name.")
        for need in set(needs) - set(NEEDS):
            raise AlgorithmError(f"{cls.__name__} cannot need '{need}'.{did_you_mean(need, list(NEEDS))}")
        if ours:
            BUILT_IN.add(cls.__name__)
        version = revision if ours else _source_revision(cls)
        cls.needs = needs
        entry = AlgorithmEntry(cls, spaces, paper, needs, selection, version, separable, capturable)
        ALGORITHMS.add(cls.__name__, entry)
        return cls

    return wrap


def _source_revision(cls: type) -> str:
    """Hash of all that decides a user's class: its file, files beside it that it imports, and what it builds on.

    Of a class that was typed, into a notebook for instance, its code stands for the file.
    """
    parts: dict[str, object] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("shiftbed."):
            entry = ALGORITHMS.registered(base.__name__)
            parts[base.__name__] = entry.revision if entry else None
        elif is_typed(base):
            parts[base.__qualname__] = content(base)
        else:
            for path in files_of(sys.modules[base.__module__]):
                parts[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"source {digest(parts)[:12]}"


def load_code(path: Path) -> None:
    """Runs a user's file, so that the algorithms registered in it are known.

    Raises:
        AlgorithmError: The file does not exist or cannot be run.
    """
    name = f"shiftbed_user_{path.stem}"  # never the name of a module that somebody else imports
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise AlgorithmError(f"There is no Python file at {path}; --code takes a file that registers algorithms.")
    list(ALGORITHMS)  # the built-in names must be known before the file can take one of them
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ShiftbedError as error:
        raise AlgorithmError(f"{path}: {error}") from error
    except Exception as error:
        of_domainbed = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "domainbed"
        do = "; `from shiftbed.algorithms.domainbed import networks, misc, ERM` has its names" if of_domainbed else ""
        raise AlgorithmError(f"{path} cannot be run: {type(error).__name__}: {error}{do}.") from error
    is_of_algorithms = any(ALGORITHMS[known].cls.__module__ == name for known in ALGORITHMS)
    if not is_of_algorithms and name not in Registry.modules:  # which may be trackers alone
        raise AlgorithmError(f"{path} registers no algorithm; write @register() before your class.")
