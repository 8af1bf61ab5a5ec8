"""The long description is README.md with absolute links; a wheel has the tables of measured H100
kernels that reports show; everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

KERNELS = Path(__file__).parent / "benchmarks" / "data" / "kernels"
ADDRESS = "https://github.com/megatile/megatile"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{ADDRESS}/raw/main/", readme)
readme = re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{ADDRESS}/blob/main/", readme)


class BuildWithTables(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "megatile" / "models" / "measured"
            self.mkpath(str(folder))
            for table in sorted(KERNELS.glob("*_h100.csv.gz")):
                self.copy_file(str(table), str(folder / table.name))


setup(
    cmdclass={"build_py": BuildWithTables},
    long_description=readme,
    long_description_content_type="text/markdown",
)
