#!/bin/bash
runai config project team-a
runai submit-tf --name dist-tf --workers=2 -g 1 -i gcr.io/run-ai-demo/quickstart-distributed --no-master
