"""Makes the helpers of this folder importable by name, in spawned processes too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
