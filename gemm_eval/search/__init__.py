"""Searches over mapping spaces."""
