"""Long runs that kill and crowd: commands, not tests."""
