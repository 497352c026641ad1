"""The one owner of numba: compile options, the disk cache of compiled kernels, and the notice of a compile.

`kernel` marks a function that other kernels call; `entry_point` marks one that Python calls. Only entry points are
cached on disk: they contain the machine code of everything below them. The cache lies in the user's cache folder, not
beside the sources, and is stamped with the text of all kernel modules, because numba itself notices a change in an
entry point's own file only. The first process that misses a kernel there has all of them compiled, by
`gemm_eval.compiled`. ``GEMM_EVAL_CACHE_DIR`` moves the cache folder; ``off`` turns it off. Compiled kernels are
pickles, which run what they say, so a folder that others can write (`gemm_eval.storage.why_unsafe`) is not used.
``NUMBA_DISABLE_JIT=1`` runs everything as plain Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import numba
import numpy.typing as npt
from numba.core import bytecode, caching, codegen, compiler, event
from numba.core.runtime import rtsys

from gemm_eval.storage import FileLock, cache_dir, make_folder, set_aside, why_unsafe

F = TypeVar("F", bound=Callable[..., Any])

# No fast-math: sums keep their order, so results are the same to the bit on every machine. The numpy error model
# spares a zero check per division; no divisor here can be zero.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}

_entry_functions: set[Any] = set()


def number_functions() -> None:
    """Count the functions that this process compiles from a random number on.

    Numba numbers them from 1 in every process, and the numbers are in the names of machine code. Code that several
    processes compiled is loaded into one, where one function would be run for another of the same name and number.
    """
    bytecode.FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(6), "big"))


number_functions()
_MAX_COMPILE_S = 600.0  # all kernels take half a minute on two cores


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """The code of a kernel inside others, which becomes machine code as a part of entry points alone.

    Numba makes machine code of every function, with all that it calls, and again of whatever calls it.
    """

    def _optimize_final_module(self) -> None:
        """Inline a little: the entry point is optimized with all that it calls. Without this, searches take 6% more."""
        passes = self._codegen._module_pass_manager(opt=1, loop_vectorize=False, slp_vectorize=False)
        passes, *builder = passes if isinstance(passes, tuple) else (passes,)  # older numba has no builder
        passes.run(self._final_module, *builder)

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002  numba's signature
        """Return 0: there is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """Stand-in for numba's setting of environments: this machine code has none."""
        return self

    def set_env(self, *_: Any) -> None:
        """Do nothing."""


class _PartCompiler(compiler.Compiler):  # type: ignore[misc]
    library_class = _PartLibrary

    def define_pipelines(self) -> Any:
        state = self.state
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


class _EntryCompiler(_PartCompiler):
    library_class = codegen.JITCodeLibrary

    def _compile_core(self) -> Any:
        """Compile what the kernel uses of numba itself, such as sorting, as parts too."""
        with _libraries(self.state.targetctx, _PartLibrary):
            return super()._compile_core()


@contextlib.contextmanager
def _libraries(target_context: Any, library_class: type[codegen.JITCodeLibrary]) -> Iterator[None]:
    """Have numba make libraries of a class, but those of its runtime, which are called from outside."""
    rtsys.initialize(target_context)
    jit_codegen = target_context.codegen()
    class_before, jit_codegen._library_class = jit_codegen._library_class, library_class
    try:
        yield
    finally:
        jit_codegen._library_class = class_before


def kernel(function: F, **options: Any) -> F:
    """Compile `function` for use inside other kernels; called from Python, on scalars or arrays, it runs as Python.

    Without the wrappers that compiled code needs for calls from Python, a first call takes a quarter less time.
    """
    compiled = _compiled_once(function, no_cpython_wrapper=True, pipeline_class=_PartCompiler, **options)
    if not numba.config.DISABLE_JIT:
        # what is compiled for another kernel is not listed for Python, which therefore asks for another function
        compiled.add_overload = lambda result: compiled.overloads.update({tuple(result.signature.args): result})
        compiled._compile_for_args = lambda *_, **__: function
    result: F = compiled
    return result


def inlined_kernel(function: F) -> F:
    """Compile `function` into every kernel that calls it: one that only names a part of another, in a hot loop."""
    return kernel(function, forceinline=True)


def entry_point(function: F) -> F:
    """Compile `function` for calls from Python, cached on disk."""
    compiled = _compiled_once(function, pipeline_class=_EntryCompiler)
    if not numba.config.DISABLE_JIT:
        _entry_functions.add(function)
        with contextlib.suppress(RuntimeError):  # numba's word for "no place to cache": run without one
            compiled._cache = _KernelCache(function)
    result: F = compiled
    return result


def with_fixed_types(function: F) -> F:
    """Return an entry point for calls that all have arguments of the first one's types, at which numba looks no more.

    Looking takes longer than a small kernel. Arrays of another type are not refused but misread.
    """
    if numba.config.DISABLE_JIT:
        return function
    code: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not code:
            code.append(function.compile(tuple(map(function.typeof_pyval, arguments))))  # type: ignore[attr-defined]
        return code[0](*arguments)

    result: Any = call
    return result  # type: ignore[no-any-return]


def named_entry_point(name: str) -> Callable[[F], F]:
    """Compile as `entry_point` does, one of several functions of one text, under its own name in the cache."""

    def compile_named(function: F) -> F:
        function.__qualname__ = f"{function.__name__}_{name}"
        return entry_point(function)

    return compile_named


def _compiled_once(function: Any, **options: Any) -> Any:
    """Compile for the types of arguments, where numba compiles anew for every constant that is passed.

    LLVM inlines what is worth it, with the constants. An integer that is passed as a parameter annotated float is one.
    All this nearly halves the time of a first call.
    """
    compiled = numba.njit(**_OPTIONS, no_cfunc_wrapper=True, **options)(function)
    if not numba.config.DISABLE_JIT:
        are_floats = [
            function.__annotations__.get(name) in ("float", float) for name in inspect.signature(function).parameters
        ]
        compile_types = compiled.compile

        def compile_for(kinds: Any) -> Any:
            if isinstance(kinds, tuple):  # else a signature that was written out
                kinds = tuple(map(_type_of_argument, kinds, are_floats))
            return compile_types(kinds)

        compiled.compile = compile_for
    return compiled


def _type_of_argument(kind: Any, is_float: bool) -> Any:
    kind = numba.types.unliteral(kind)
    return numba.types.float64 if is_float and isinstance(kind, numba.types.Integer) else kind


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: numba compiles for both kinds, so what kernels only read is always this."""
    view = array.view()
    view.setflags(write=False)
    return view


@cache
def source_stamp() -> str:
    """Return a digest of the text of all kernels: what they compute can change only when it does.

    The terms count too: kernels hold their order, and what each belongs to, as constants.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted([*package.rglob("*_kernels.py"), *package.rglob("terms.py")]):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _kernel_folder(root: Path) -> Path | None:
    """Return the folder of these kernels, made if missing; None: it cannot be made, or is not this user's alone.

    Environments with other versions of numba or Python, which cannot read each other's, have folders of their own.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = root / "kernels" / f"{source_stamp()[:16]}-numba-{numba.__version__}-python-{python}"
    try:
        make_folder(folder)
        unsafe = why_unsafe(folder, *folder.iterdir())
    except OSError:
        return None
    if unsafe is not None:
        warnings.warn(
            f"compiled kernels in {folder} are not used: {unsafe}; or delete the folder", RuntimeWarning, stacklevel=2
        )
        return None
    return folder


class _KernelLocator(caching._CacheLocator):  # type: ignore[misc]
    """Places compiled kernels in the user's cache folder, one subfolder for each state of the kernel sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._py_file = __file__  # numba names it when a function cannot be cached

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return source_stamp()

    def get_disambiguator(self) -> str:
        return "0"

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:  # noqa: ARG003  numba's signature
        root = cache_dir()
        folder = None if root is None else _kernel_folder(root)
        if folder is None:
            return None
        locator = cls(folder)
        try:
            locator.ensure_cache_path()
        except OSError:  # a read-only folder only means no cache
            return None
        return locator


class _KernelCacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_KernelLocator,)


class _KernelCache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _KernelCacheImpl

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Tell versions of a function apart by types and machine alone: the folder's stamp is that of all sources.

        Numba adds a digest of what a function closes over, which differs from process to process for other kernels.
        """
        return sig, codegen.magic_tuple(), self._py_func.__qualname__

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code without what numba imports to compile, which takes longer than all else of a first call.

        Its own method refreshes the context for that; the runtime is all that loaded code needs. To compile, numba
        refreshes the context again.
        """
        loaded = self._load_compiled(sig, target_context)
        if loaded is None and self._py_func.__module__.startswith("gemm_eval.") and _compile_all(Path(self.cache_path)):
            loaded = self._load_compiled(sig, target_context)
        return loaded

    def _load_compiled(self, sig: Any, target_context: Any) -> Any:
        try:
            with _libraries(target_context, codegen.JITCodeLibrary), self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle can raise anything
            warnings.warn(
                f"set aside a damaged kernel cache in {self.cache_path}: {error!r}", RuntimeWarning, stacklevel=2
            )
            for path in Path(self.cache_path).glob(f"{self._impl.filename_base}*.nb[ic]"):
                try:
                    set_aside(path, f"{path.name}.damaged")
                except OSError:
                    continue
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # a full disk costs the next process a compile, nothing more
            warnings.warn(
                f"could not save compiled kernels in {self.cache_path}: {error}", RuntimeWarning, stacklevel=2
            )


@cache
def _compile_all(folder: Path) -> bool:
    """Compile all kernels of the library, unless an earlier process did; return whether they are now in the folder."""
    complete = folder / "complete"
    if os.environ.get("GEMM_EVAL_COMPILE") == "needed" or complete.exists() or not sys.executable:
        return False
    try:
        lock = FileLock(folder / "compiling.lock")
        if not lock.acquire(timeout_s=_MAX_COMPILE_S):
            return False
        try:
            if not complete.exists():  # else the process that had the lock has compiled them
                _run_compiler()
                complete.touch()
        finally:
            lock.release()
    except (OSError, subprocess.SubprocessError):  # then this process compiles what it needs
        return False
    return True


def _run_compiler() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    if not sys.stderr.isatty():
        _announce()
    subprocess.run(
        [sys.executable, "-m", "gemm_eval.compiled"], env=os.environ | {"PYTHONPATH": path}, check=True,
        timeout=_MAX_COMPILE_S, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@cache
def _announce() -> None:
    """Say once per process that kernels are being compiled, so that a first call does not look hung."""
    print("gemm_eval: compiling its kernels, once per machine and version ...", file=sys.stderr, flush=True)  # noqa: T201


class _CompileNotice(event.Listener):  # type: ignore[misc]
    """Announces what this process itself compiles."""

    def on_start(self, event: Any) -> None:
        if getattr(event.data["dispatcher"], "py_func", None) in _entry_functions:
            _announce()

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


event.register("numba:compile", _CompileNotice())
