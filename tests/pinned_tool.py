"""Finds a tool in the pinned version that cmake/setup.sh --tests installs."""
import os
import pathlib
import shutil
import subprocess


def find_tool(name, version):
    """The tool's path; None if it is not installed in this version."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    for found in (cache / "kolo/tools/bin" / name, shutil.which(name)):
        if found and pathlib.Path(found).exists():
            text = subprocess.run([found, "--version"], capture_output=True, text=True,
                                  check=False).stdout
            if f"version {version}" in text:
                return str(found)
    return None
