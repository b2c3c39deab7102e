FROM gcr.io/deeplearning-platform-release/tf2-gpu.2-13
COPY . /app
