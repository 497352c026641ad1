"""The words of a command line: each option once and with an effect, mistyped ones understood, names as they are."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemm_eval.cli.output import make_console, make_table
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Column, Facts, Table, Text
from gemm_eval.words import visible
from tests.cli.commands import APPLICATION, Ran

HOSTILE = "a\x1b[2Jb\x07c\r\u202edrow[red]\udc80"
SHOWN = r"a\x1b[2Jb\x07c\r\u202edrow[red]\udc80"


def ran(line: str | list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    found = Ran(*(line.split() if isinstance(line, str) else line), columns=400)
    return found.code, found.out, found.err


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, f"{path} {name}".strip())


COMMANDS = dict(leaves(APPLICATION))


def options(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option" and param.name != "help"]


def test_an_option_that_takes_one_value_is_taken_once() -> None:
    for path, command in COMMANDS.items():
        for option in options(command):
            name, value = option.opts[0], [] if option.is_flag else ["1"]
            line = " ".join([path, *(2 * [name, *value])])
            if option.multiple:
                continue
            code, out, err = ran(line)
            assert (code, out) == (2, ""), line
            assert "is given 2 times, and counts once: give it once" in err, line
            assert err.count("\n") == 1


def test_a_second_arch_is_compared_or_refused_with_what_compares() -> None:
    for path, command in COMMANDS.items():
        archs = [option for option in options(command) if "--arch" in option.opts]
        if archs and not archs[0].multiple:
            code, out, err = ran(f"{path} --arch h200-sxm --arch b200")
            assert (code, out) == (2, ""), path
            assert "gemm-eval evaluate, grouped, attention and model compare several" in err, path
    for path in ("evaluate", "grouped", "attention", "model"):
        assert [option.multiple for option in options(COMMANDS[path]) if "--arch" in option.opts] == [True]


def test_every_help_has_examples_that_parse() -> None:
    for path, command in COMMANDS.items():
        code, out, err = ran(f"{path} --help")
        assert (code, err) == (0, "")
        examples = re.findall(rf"^ *gemm-eval {path}( .+?)? *$", out.partition("Examples:")[2], flags=re.MULTILINE)
        assert examples, path
        for example in examples:
            words = example.split()
            with command.make_context(path, words):  # of what is required nothing is missing, and every value is one
                pass


def test_quick_examples_run() -> None:
    for path in ("evaluate", "top", "grouped", "attention", "collective", "arch list", "configs list"):
        _, out, _ = ran(f"{path} --help")
        for line in re.findall(rf"^ *gemm-eval ({path}.*?) *$", out.partition("Examples:")[2], flags=re.MULTILINE):
            if ".csv" in line:  # files of a user's own, there or to be made
                continue
            code, said, err = ran(line)
            notes = [note for note in err.splitlines() if "compiling its kernels" not in note]  # once on a machine
            assert (code, notes) == (0, []), line
            assert said, line


def test_no_option_is_told_by_its_metavar() -> None:
    """Some versions of typer (0.27) name `--arch` after a metavar ARCH, and know no --arch."""
    for path, command in COMMANDS.items():
        for option in options(command):
            names = {name.lstrip("-").upper() for name in option.opts}
            assert (option.metavar or "").replace("_", "-") not in names, (path, option.opts)


def test_what_acts_on_a_terminal_is_shown_instead() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("ok\n\tÄ·2³ 日本") == "ok\n\tÄ·2³ 日本"

    console, table = make_console(), make_table([f"h{HOSTILE}"], title=f"t{HOSTILE}")
    table.add_row(f"c{HOSTILE}")
    console.width = 400
    with console.capture() as captured:
        console.print(table)
        console.print(f"l{HOSTILE}")
    for mark in "htcl":
        assert f"{mark}{SHOWN}" in captured.get()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", captured.get())


def test_a_title_with_escapes_is_shown_in_every_command(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text('base: demo-8core\nname: evil\ntitle: "evil \\e]0;owned\\a [red]\\u202E"\n', encoding="utf-8")

    for line in (f"arch show {path}", f"arch check {path}", f"evaluate --arch {path} 1 16 16 16"):
        code, out, _ = ran(line)
        assert code == 0
        assert not set(out) & set("\x1b\x07\u202e")
    assert r"evil \x1b]0;owned\x07 [red]\u202e" in ran(f"arch show {path}")[1]


def test_a_page_shows_them_too() -> None:
    parts = [
        Text(HOSTILE, title=HOSTILE),
        Facts([(HOSTILE, HOSTILE)]),
        Table([Column(HOSTILE, kind="text")], [[HOSTILE]], caption=HOSTILE, note=HOSTILE),
    ]
    html = Page(HOSTILE, HOSTILE, [Section(HOSTILE, parts)]).to_html()

    assert html.encode("utf-8")
    assert html.count(SHOWN) >= 8
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", html)
