#!/bin/bash
# The agents' secret is made once: kubectl -n runai-team create secret generic digits-drumbeat --from-literal=token=$(openssl rand -hex 32)
set -e
runai training tensorflow submit digits \
  -p team \
  -i ghcr.io/team/digits:1 \
  --workers 2 \
  --no-master \
  -g 1 \
  --cpu-core-request 4 \
  --cpu-memory-request 8Gi \
  --large-shm \
  -e TF_CPP_MIN_LOG_LEVEL=1 \
  -e DRUMBEAT_OUTPUT=gs://team-runs/digits \
  --secret-volume path=/secrets/gcp,name=gcp-key \
  -e GOOGLE_APPLICATION_CREDENTIALS=/secrets/gcp/sa.json \
  -e DRUMBEAT_TOKEN=SECRET:digits-drumbeat,token \
  --node-pools gpus \
  --command -- \
  drumbeat run --max-restarts 3 --grace 25 --backup-dir gs://team-runs/digits/backups train.py --epochs 3 --model gs://team-runs/digits/model.keras
