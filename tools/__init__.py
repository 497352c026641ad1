"""Programs for developers of gemm_eval: run from a checkout, never packed into the wheel."""
