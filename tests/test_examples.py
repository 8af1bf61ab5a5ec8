"""Every example runs as a reader would run it: as a script, in an empty folder, without a screen."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import patience

ROOT = Path(__file__).parents[1]
EXAMPLES = [ROOT / "examples" / "demo.py", *sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))]
TIME_LIMIT = 100


def run_script(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `script` in `folder`, with this checkout of the package and this interpreter."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(TIME_LIMIT),
        check=False,
    )


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    run = run_script(script, tmp_path)
    if "No module named 'torch'" in run.stderr and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch, which is not installed")
    assert run.returncode == 0, f"{script.name} failed:\n{run.stdout}\n{run.stderr}"
    assert run.stdout.strip(), f"{script.name} prints nothing: an example shows something"


def test_a_failing_script_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('broken')", encoding="utf-8")
    run = run_script(script, tmp_path)
    assert run.returncode == 1
    assert "broken" in run.stderr
