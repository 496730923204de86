# SPDX-License-Identifier: Apache-2.0
"""docs/dropins.md says what becomes of every argument of every drop-in; this holds it to that."""

import inspect
import re
from pathlib import Path

import numpy as np
import packattn
import pytest

PAGE = Path(__file__).parents[2] / "docs/dropins.md"
STATUS = {"honoured", "translated", "refused", "no effect"}


def read_page():
    """{"flash_attn.flash_attn_func": {argument: status}}"""
    table, here = {}, None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"### `([\w.]+)`", line):
            here = table.setdefault(heading[1], {})
        elif line.startswith("| `"):
            names, status, _ = (cell.strip() for cell in line.strip("|").split("|"))
            assert status in STATUS, line
            for name in re.findall(r"`(\w+)`", names):
                assert name not in here, f"{name} twice in {line}"
                here[name] = status
    return table


def find_functions():
    for library in packattn.compat.__all__:
        module = getattr(packattn.compat, library)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
                continue
            if inspect.isclass(value):
                for method in ("plan", "run"):
                    yield f"{library}.{name}.{method}", getattr(value, method)
            else:
                yield f"{library}.{name}", value


TABLE = read_page()
FUNCTIONS = dict(find_functions())
REFUSED = [
    (function, argument)
    for function, arguments in TABLE.items()
    for argument, status in arguments.items()
    if status == "refused"
]


def test_every_argument_is_on_the_page():
    assert TABLE.keys() == FUNCTIONS.keys()
    for name, function in FUNCTIONS.items():
        arguments = {
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "self"
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        assert TABLE[name].keys() == arguments, name


def fitting_call(function):
    """Arguments that are right but for the one that a test adds."""
    rows = np.ones((6, 2, 8), np.float32)
    ends = np.array([0, 2, 6])
    dense = np.ones((2, 3, 2, 8), np.float32)
    kda = np.zeros((1, 6, 2, 8), np.float32)
    by_name = {
        "q": rows, "k": rows, "v": rows, "kv": np.stack([rows, rows], 1),
        "qkv": np.stack([rows] * 3, 1), "cu_seqlens_q": ends, "cu_seqlens_k": ends,
        "cu_seqlens": ends, "max_seqlen_q": 4, "max_seqlen_k": 4, "max_seqlen": 4,
        "qo_indptr": ends, "kv_indptr": ends, "num_qo_heads": 2, "num_kv_heads": 2, "head_dim": 8,
        "head_dim_qk": 8, "page_size": 3, "paged_kv_indptr": np.array([0, 1, 2]),
        "paged_kv_indices": np.array([0, 1]), "paged_kv_last_page_len": np.array([3, 3]),
        "indptr": np.array([0, 1, 2]), "indices": np.array([0, 1]),
        "last_page_len": np.array([3, 3]),
    }  # fmt: skip
    dense_functions = ("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func")
    if function.endswith((*dense_functions, "with_kvcache")):
        by_name |= {"q": dense, "k": dense, "v": dense, "k_cache": dense, "v_cache": dense}
        by_name |= {"kv": np.stack([dense] * 2, 2), "qkv": np.stack([dense] * 3, 2)}
        by_name |= {"cu_seqlens_q": None}
    if function.startswith("fla."):
        by_name |= {
            "q": kda,
            "k": kda,
            "v": kda,
            "g": kda,
            "beta": kda[..., 0].copy(),
            "cu_seqlens": None,
        }
    required = [
        parameter.name
        for parameter in inspect.signature(FUNCTIONS[function]).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.name != "self"
    ]
    return {name: by_name[name] for name in required}


@pytest.mark.parametrize(("function", "argument"), REFUSED)
def test_refused_arguments_are_refused_by_name(function, argument):
    target = FUNCTIONS[function]
    if function.startswith("flashinfer."):
        wrapper = getattr(packattn.compat.flashinfer, function.split(".")[1])()
        target = getattr(wrapper, function.split(".")[2])
    call = fitting_call(function)
    target(**call)
    for value in (np.ones(2, np.float32), 3):
        with pytest.raises(NotImplementedError) as caught:
            target(**call, **{argument: value})
        assert [(f.code, f.argument) for f in caught.value.faults] == [("PA3009", argument)]
        assert caught.value.faults[0].help
