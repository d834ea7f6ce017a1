"""Lua as Argo CD runs it: 5.1, with the libraries base, package and table alone.

Argo CD's own interpreter is gopher-lua (``util/lua/lua.go``), which is a 5.1 too; here it is the
reference implementation. Objects go in, and come out, as JSON would have them.
"""

from typing import Any

import yaml
from lupa import lua51

from tools.argocd_files import CONFIG_MAP

#: Of the libraries, and of what reaches out of them; Argo CD has none of it.
_MISSING = ("coroutine", "debug", "io", "math", "os", "python", "string")


def customization(name: str, kind: str) -> str:
    """Return the ConfigMap's entry under ``health`` or ``actions`` for a kind of ours."""
    data = yaml.safe_load(CONFIG_MAP.read_text("utf-8"))["data"]
    return str(data[f"resource.customizations.{name}.tidemark.dev_{kind}"])


def run(script: str, body: dict[str, Any]) -> Any:
    """Run a script with ``body`` as ``obj`` and return its result. Raises lua51.LuaError."""
    runtime = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    names = runtime.globals()
    for name in _MISSING:
        names[name] = None
    names["obj"] = runtime.table_from(body, recursive=True)
    return _plain(runtime.execute(script))


def _plain(value: Any) -> Any:
    """A table that counts from one is a list; an empty one is too, as in Argo CD."""
    if lua51.lua_type(value) != "table":
        return value
    items = {key: _plain(item) for key, item in value.items()}
    if list(items) == list(range(1, len(items) + 1)):
        return list(items.values())
    return items
