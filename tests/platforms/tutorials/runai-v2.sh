#!/bin/sh
runai training tf submit dist-tf -p team-a -i ghcr.io/team/mnist:1 --workers 2 -g 1 \
  --environment EPOCHS=3 --command -- python train.py
