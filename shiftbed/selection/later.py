"""Rules that later rooms register: their modules are imported when the registry of selections is first read."""

import importlib

for module in ("shiftbed.accuracy.selection", "shiftbed.audit.oracles"):
    importlib.import_module(module)
