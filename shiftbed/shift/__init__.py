"""Shift: how far apart domains are, and in what way."""
