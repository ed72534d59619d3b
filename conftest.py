"""Where an extra is missing, the files that need it are not searched for examples (Flower needs Python 3.11)."""

import importlib.util

HOMES = {
    "flwr": "src/shoal/integrations/flower",
    "dp_accounting": "src/shoal/integrations/dp_accounting.py",
    "opacus": "src/shoal/integrations/opacus.py",
    "torch": "src/shoal/learning",
    "starlette": "src/shoal/explore",
}
collect_ignore = [path for module, path in HOMES.items() if importlib.util.find_spec(module) is None]
