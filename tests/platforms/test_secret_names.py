"""Which variables are secrets by their names, and which texts by their form."""

from __future__ import annotations

import pytest

from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import problems
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.secret_names import is_secret, names_secret


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
        ("PGPASSWORD", True),
        ("DJANGO_SECRET_KEY", True),
        ("SSH_PASSPHRASE", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True),
        ("PRIMARY_KEY", False),
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


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("postgres://u:hunter2@db:5432/x", True),
        ("http://:hunter2@proxy:3128", True),
        ('{"private_key": "-----BEGIN PRIVATE KEY-----\\nhunter2"}', True),
        ("ghp_" + "hunter2" * 5 + "a", True),
        ("--token=hf_" + "hunter2" * 5, True),
        ("sk-proj-" + "hunter2" * 5, True),
        ("xoxb-1234567890-hunter2", True),
        ("http://u@proxy:3128", False),
        ("http://10.0.0.1:9000/a@b", False),
        ("s3://bucket/a:b", False),
        ("postgres://u:${PASSWORD}@db/x", False),
        ("task-hf_small", False),
        ("sk-learn", False),
        ("-----BEGIN CERTIFICATE-----", False),
    ],
)
@pytest.mark.parametrize("place", ["environment", "args", "data", "output"])
def test_forms(text, is_one, place):
    assert is_secret(text) is is_one
    value = {"environment": {"A": text}, "args": ["a", text]}.get(place, text)
    document = Document(value={"name": "a", "script": "t.py", place: value, "workers": "x"})
    with pytest.raises(ConfigError) as refused:  # for the workers, in any case
        problems.check(Job, document, "drumbeat.yaml")
    assert ("holds a secret by its form" in str(refused.value)) is is_one
    assert "hunter2" not in str(refused.value)
