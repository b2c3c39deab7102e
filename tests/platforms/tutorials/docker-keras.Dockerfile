FROM tensorflow/tensorflow:2.15.0-gpu
WORKDIR /root
RUN pip install cloudml-hypertune
COPY trainer /root/trainer
ENTRYPOINT ["python", "-m", "trainer.task"]
