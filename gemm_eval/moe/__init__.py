"""Mixtures of experts: how tokens are routed, and what a layer costs."""
