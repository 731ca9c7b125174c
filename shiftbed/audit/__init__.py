"""The audit: is this comparison honest, or does knowledge of the test domains leak into it?

`oracles` is imported with the registry of selections, so nothing heavy may be imported here.
"""
