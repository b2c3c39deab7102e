"""The examples in docs/platforms/examples are what drumbeat renders today."""

import importlib.util
from pathlib import Path

import pytest

from drumbeat.platforms import registry
from drumbeat.platforms.jobfile import read

ROOT = Path(__file__).parents[2]


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = tool("platform_examples")


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_example_is_as_rendered_today(name):
    assert examples.differences(name) == [], "make platform-examples writes them"


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_rendering_is_deterministic(name):
    assert examples.rendered(name) == examples.rendered(name)


@pytest.mark.parametrize("name", registry.PLATFORMS)
def test_there_is_a_page(name):
    assert (ROOT / "docs" / "platforms" / f"{name}.md").is_file()


def test_all_keys_are_in_the_table():
    doc = tool("job_file_doc")
    text = doc.page()
    assert doc.PAGE.read_text() == text, "make platform-examples writes it"
    assert "| `mounts[].path` | Where it is in the container. |" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert all(row[1].strip() for row in rows)
    assert {"| `name`", "| `slurm.partition`", "| `docker.base`"} <= {row[0] for row in rows}


def test_the_volumes_of_the_page_are_a_job_file(tmp_path):
    (tmp_path / "drumbeat.yaml").write_text(
        "name: a\nscript: t.py\n" + tool("job_file_doc").page().split("```")[1].removeprefix("yaml")
    )
    job = read.read(tmp_path / "drumbeat.yaml")
    assert [each.source for each in job.mounts] == [None, "nas:/exports/team", "/mnt/scratch"]
