"""Where an extra is missing, the files that need it are not searched for examples (Flower needs Python 3.11)."""

import importlib.util

HOMES = {
    "flwr": "src/shoal/deployment",
    "dp_accounting": "src/shoal/adapters/dp_accounting.py",
    "opacus": "src/shoal/adapters/opacus.py",
    "torch": "src/shoal/training",
    "starlette": "src/shoal/web",
}
collect_ignore = [path for module, path in HOMES.items() if importlib.util.find_spec(module) is None]
