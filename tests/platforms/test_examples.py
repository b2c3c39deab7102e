"""The examples in docs/platforms/examples are what drumbeat renders today."""

import importlib.util
from pathlib import Path

import pytest

from drumbeat.platforms import registry

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "platform_examples", ROOT / "tools" / "platform_examples.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
examples = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(examples)


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_example_is_as_rendered_today(name):
    assert examples.differences(name) == [], "make platform-examples writes them"


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_rendering_is_deterministic(name):
    assert examples.rendered(name) == examples.rendered(name)


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_there_is_a_page(name):
    assert (ROOT / "docs" / "platforms" / f"{name}.md").is_file()
