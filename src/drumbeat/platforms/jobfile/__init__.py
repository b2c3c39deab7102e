"""The job file: `drumbeat.yaml`, or `[tool.drumbeat]` in pyproject.toml."""

from drumbeat.platforms.jobfile.model import Job

__all__ = ["Job"]
