"""The parser of command lines: it takes each option once, and says what was meant by a mistyped one.

Nothing here names a class of click: typer brings its own copy of it, or not, depending on its version.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import SYNONYMS, did_you_mean

_FLAGS = {name: f"--{names[0].replace('_', '-')}" for names in SYNONYMS for name in names}
"""The option of a command for each name of an argument."""
_CHANGE = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=([^\s,;]+)")
_STYLE = re.compile(r"\[(?=[a-z#/@])")  # how a style begins in rich's markup
_INSTEAD = {"--arch": "; gemm-eval evaluate, grouped, attention and model compare several side by side"}
"""The commands that do what an option given twice was meant to do."""


class Command(TyperCommand):
    """A command that refuses an option given twice, where the first value would be dropped without a word."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _keep_brackets(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        if ctx.resilient_parsing:  # a shell completes words that are not all there
            return super().parse_args(ctx, args)
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, count in Counter(order).items():
            if count > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                name = _name_of(param)
                instead = _INSTEAD.get(name, "")
                raise InvalidOptionError(f"{name} is given {count} times, and counts once: give it once{instead}")
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands that says which one a mistyped name may have meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _keep_brackets(self)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first word names."""
        name = args[0]
        is_whole = not ctx.resilient_parsing
        if is_whole and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command '{name}'{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _keep_brackets(command: Any) -> None:
    """Escape the brackets of help texts, such as those of ``gemm_eval[asm]``, which rich takes for styles."""
    for item in (command, *command.params):
        if getattr(item, "help", None):
            item.help = _STYLE.sub(r"\\[", item.help)


def usage_message(error: Any, words: Sequence[str]) -> str:
    """Return the message of a usage error of click's: what is wrong, what `words` may have meant, where to look."""
    ctx = getattr(error, "ctx", None)
    message = str(error.format_message()).rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        # of -arch the parser names no more than -a
        word = next((word for word in words if word.startswith(error.option_name)), error.option_name).partition("=")[0]
        if word[1:2].isdigit():
            meant = "; a size is an integer >= 1"
        else:
            params = [] if ctx is None else ctx.command.get_params(ctx)
            known = [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]
            meant = _of_siblings(ctx, word) or did_you_mean(f"--{word.lstrip('-')}", known)
        message = f"No such option: {word}{meant}"
    return f"{message}; see {getattr(ctx, 'command_path', 'gemm-eval')} --help"


def with_flags(message: str) -> str:
    """Return a message of the library whose changes that would help are options: --tp 4 for tensor_parallel=4."""
    start, would_fit, changes = message.partition("would fit with: ")
    return start + would_fit + _CHANGE.sub(lambda m: f"{_FLAGS[m[1]]} {m[2]}" if m[1] in _FLAGS else m[0], changes)


def _of_siblings(ctx: Any, option: str) -> str:
    """Say which commands beside this one in its group know an option; an empty text where none does."""
    above = getattr(ctx, "parent", None)
    if above is None or above.parent is None:  # commands of gemm-eval itself have little to do with each other
        return ""
    names = [
        name
        for name, command in above.command.commands.items()
        if any(option in (*param.opts, *param.secondary_opts) for param in command.get_params(ctx))
    ]
    return f", which is one of {above.command_path} {_listed(names)}" if names else ""


def refuse(ctx: typer.Context, mode: str, names: Collection[str]) -> None:
    """Refuse parameters of the function that have no effect in this mode of a command, where they are given."""
    if others := [param for param in ctx.command.get_params(ctx) if param.name in names and is_given(ctx, param.name)]:
        raise InvalidOptionError(f"{mode} does not go with {_listed(map(_name_of, others))}: leave it out")


def refuse_others(ctx: typer.Context, mode: str, obeyed: Collection[str]) -> None:
    """Refuse what is given and not in `obeyed`, the parameters of the function that count in this mode of a command."""
    params = ctx.command.get_params(ctx)
    if others := [param for param in params if param.name not in obeyed and is_given(ctx, param.name or "")]:
        known = [_name_of(param) for param in params if param.name in obeyed and _name_of(param) != mode]
        raise InvalidOptionError(
            f"{mode} does not go with {_listed(map(_name_of, others))}; it goes with {_listed(known)}"
        )


def is_given(ctx: typer.Context, name: str) -> bool:
    """Return whether a parameter stands on the command line, whatever its value."""
    source = ctx.get_parameter_source(name)
    # typer 0.26 says so of arguments that are not there, too, if there may be several
    return source is not None and source.name == "COMMANDLINE" and ctx.params.get(name) != ()


def _name_of(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[].")
    return str(next((name for name in param.opts if len(name) > len("--m")), param.opts[-1]))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
