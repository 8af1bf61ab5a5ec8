"""The package's long description is README.md with absolute links, and the file that looks at
``MEGATILE_AS_TILELANG`` when Python starts lies beside the package; everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STARTUP = Path("src/megatile/compat/tilelang/megatile_as_tilelang.pth")
ADDRESS = "https://github.com/megatile/megatile"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{ADDRESS}/raw/main/", readme)
readme = re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{ADDRESS}/blob/main/", readme)


class BuildWithStartup(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(str(STARTUP), str(Path(self.build_lib, STARTUP.name)))


setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithStartup},
)
