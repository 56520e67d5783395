# Runs the tests on Python 3.7 (TensorFlow 1.15 and 2.0) where no such Python is installed any more:
#
#   docker build -f tools/python37.Dockerfile --build-arg ROW=tf115 -t lossscale-tf115 .
#   docker run --rm lossscale-tf115                                  all tests
#   docker run --rm -v "$PWD:/clone" lossscale-tf115 pytest tests/scales/loss_scale_test.py
FROM python:3.7-slim-bookworm

ARG ROW=tf115
ENV TF_CPP_MIN_LOG_LEVEL=2
WORKDIR /clone
COPY . .
# The constraints name the TensorFlow of the row.
RUN pip install --no-cache-dir -c constraints/${ROW}.txt -e '.[test]' tensorflow
CMD ["pytest", "-m", ""]
