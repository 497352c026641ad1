"""A corpus of answers: a fixed list of questions to the public API, and one digest of all that it answers.

    python -m tools.corpus                     # a digest for each kind of question, and one over all: 3 minutes
    python -m tools.corpus --write before      # also keep the answers: before/<kind>.jsonl, one line of JSON each
    python -m tools.corpus --against before    # compare with answers kept before; exit code 1 if any differs
    python -m tools.corpus gpu attention       # these kinds only
    python -m tools.corpus --slow              # `validate --json` and the YAML of `calibrate` too: hours
    python -m tools.corpus calibrate --only "moe --arch h200-sxm"     # some of these commands

A refactoring is right if the digest stays. Where an answer is meant to change, `--against` shows which do.
"""
