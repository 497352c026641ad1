"""`python -m gemm_eval` is the command line `gemm-eval`."""

from gemm_eval.cli import main

if __name__ == "__main__":
    main()
