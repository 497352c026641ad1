"""The command line `gemm-eval`: thin commands over the library, nothing that a notebook could not do."""

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    import signal

    from gemm_eval.cli.app import app

    if hasattr(signal, "SIGPIPE"):  # `gemm-eval ... | head` ends as quietly as any other tool
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    app(prog_name="gemm-eval")
