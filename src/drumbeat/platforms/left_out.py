"""What of a job's folder goes neither into an image nor to a server: keys, leftovers, data.

Patterns as .gitignore and .dockerignore have them alike; `**/` means any folder.
"""

from __future__ import annotations

SECRETS = [
    "**/.env",
    "**/.env.*",
    "**/*.pem",
    "**/*.key",
    "**/*.p12",
    "**/*.pfx",
    "**/.netrc",
    "**/.pypirc",
    "**/.aws",
    "**/.azure",
    "**/.config/gcloud",
    "**/.docker",
    "**/.kube",
    "**/.ssh",
    "**/id_rsa*",
    "**/id_ed25519*",
    "**/secrets",
    "**/*credentials*.json",
    "**/*service*account*.json",
    "**/*sa.json",
    "**/*-key.json",
    "**/kaggle.json",
]
LEFTOVERS = [
    ".venv*",
    "venv",
    "env",
    "**/__pycache__",
    "**/*.pyc",
    "**/.*_cache",
    "**/.ipynb_checkpoints",
    ".drumbeat",
    "**/*.egg-info",
    "build",
    "dist",
]
DATA = [
    "runs",
    "logs",
    "data",
    "datasets",
    "output",
    "outputs",
    "checkpoints",
    "**/*.keras",
    "**/*.h5",
    "**/*.tfrecord*",
]
