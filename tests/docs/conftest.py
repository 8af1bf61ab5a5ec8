"""What a page registers is gone after it: other tests of the same process see only what is built in."""

import sys
from collections.abc import Iterator

import pytest

from megatile.core.registry import Registry


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes out what was added meanwhile, except by modules of the package that were imported meanwhile."""
    added: list[tuple[Registry[object], str]] = []
    add = Registry.add

    def noted(registry: Registry[object], name: str, thing: object) -> object:
        result = add(registry, name, thing)
        if not imports_the_package():
            added.append((registry, name))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "add", noted)
        yield
    for registry, name in added:
        del registry._things[name]


def imports_the_package() -> bool:
    """Whether a module of the package is being executed."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"].startswith("megatile."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
