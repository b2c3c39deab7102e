"""Which variables are secrets by their names."""

from __future__ import annotations

import pytest

from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.secret_names import names_secret


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True),
        ("TOKEN", True),
        ("db_password", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("WANDB_API_KEY", True),
        ("CLIENT_SECRET", True),
        ("AWS_ACCESS_KEY_ID", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("TOKENIZER", False),
        ("SORT_KEY", False),
        ("PAD_TOKEN", False),
        ("BERT_MASK_TOKEN", False),
        ("GITHUB_TOKEN", True),
        ("NOTOKEN", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", False),
    ],
)
def test_names(name, is_secret):
    assert names_secret(name) is is_secret
    job = {"name": "a", "script": "t.py", "environment": {name: "x"}}
    if is_secret:
        with pytest.raises(ValueError, match="is a secret by its name"):
            Job.model_validate(job)
    else:
        assert Job.model_validate(job).environment == {name: "x"}
