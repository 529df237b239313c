"""A wheel also has the files of this repository that `transformer-core new` lays out. Everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from transformer_core.project import FILES, PACKAGED


class BuildWithProject(build_py):
    """Copy the files into the package as it is built; an editable installation reads those of its clone."""

    def run(self) -> None:
        super().run()
        for name in () if self.editable_mode else FILES:
            target = Path(self.build_lib, "transformer_core", PACKAGED, name)
            self.mkpath(str(target.parent))
            self.copy_file(name, str(target))

    def get_source_files(self) -> list[str]:
        """Of a source distribution, too."""
        return [*super().get_source_files(), *FILES]


setup(cmdclass={"build_py": BuildWithProject})
