# SPDX-License-Identifier: Apache-2.0
"""Prints every public name of the package with its signature; api.txt holds what it should be.

python tests/python/api_listing.py > tests/python/api.txt
"""

import inspect
import sys

import packattn


def members(owner, name):
    for key, value in sorted(vars(owner).items()):
        if key.startswith("_") and key != "__init__":
            continue
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if isinstance(value, property):
            yield f"{name}.{key}: property"
        elif inspect.isfunction(value):
            yield f"{name}.{key}{inspect.signature(value)}"


def listing():
    for name in packattn.__all__:
        value = getattr(packattn, name)
        if inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__)
            yield f"class {name}({bases})"
            yield from members(value, name)
        elif inspect.isfunction(value):
            yield f"{name}{inspect.signature(value)}"
        elif inspect.ismodule(value):
            yield f"module {name}"
        else:
            yield f"{name}: {type(value).__name__}"
    for name in packattn.compat.__all__:
        module = getattr(packattn.compat, name)
        for key, value in sorted(vars(module).items()):
            public = not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
            if public and inspect.isclass(value):
                yield from members(value, f"compat.{name}.{key}")
            elif public:
                yield f"compat.{name}.{key}{inspect.signature(value)}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in listing())
