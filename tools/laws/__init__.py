"""Laws that answers must keep, checked on as many random problems as one asks for: commands, short runs in CI."""
