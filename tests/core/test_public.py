"""Public names load when first used; a folder above adds names without being imported from below."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from megatile.core.public import PublicNames, extend


def test_names_load_when_asked_for_and_others_may_add_to_them(monkeypatch):
    module, provider = ModuleType("some_module"), ModuleType("some_provider")
    monkeypatch.setitem(sys.modules, "some_module", module)
    monkeypatch.setitem(sys.modules, "some_provider", provider)
    provider.NAMES = {"sqrt": "math", "pi": "nowhere"}
    names = PublicNames("some_module", {"pi": "math"})
    with pytest.raises(AttributeError, match="'some_module' has no attribute 'sqrt'"):
        names("sqrt")
    extend("some_module", "some_provider")
    assert names("sqrt")(9) == module.sqrt(9) == 3
    assert names("pi") > 3  # a module's own names come first
    assert names("__all__") == ["pi", "sqrt"]
    with pytest.raises(AttributeError, match="no attribute 'e'"):
        names("e")


def test_attention_has_published_names_without_loading_what_provides_them():
    code = (
        "import sys, megatile.attention as a\n"
        "assert 'RingComm' in a.__all__ and 'ring_flash_attn_func' in dir(a)\n"
        "assert not {'torch', 'megatile.compat.hamilton'} & set(sys.modules)\n"
        "scope = {}; exec('from megatile.attention import make_schedule', scope)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
