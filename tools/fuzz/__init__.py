"""Fuzzing: damaged and hostile inputs of each kind that the library reads, under limits of time, memory and files."""
