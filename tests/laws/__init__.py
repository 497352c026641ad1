"""Laws that answers must keep, checked over as many random problems as one asks for: commands, with short runs in CI."""
