"""The package's long description is README.md with absolute links; everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

ADDRESS = "https://github.com/megatile/megatile"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{ADDRESS}/raw/main/", readme)
readme = re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{ADDRESS}/blob/main/", readme)

setup(long_description=readme, long_description_content_type="text/markdown")
