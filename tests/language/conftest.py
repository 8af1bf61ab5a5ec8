"""Lets the tests of the language share `language_examples` and `random_programs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
