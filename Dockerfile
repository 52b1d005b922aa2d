# minicaffe on a CPU, with loops compiled by Numba and ONNX:
#   docker build -t minicaffe .
#   docker run --rm -v "$PWD:/work" minicaffe detect test.prototxt net.caffemodel photo.jpg --draw out
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.13-slim
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[fast,onnx,safetensors]" && rm -r /dist && useradd --create-home minicaffe
USER minicaffe
WORKDIR /work
ENTRYPOINT ["minicaffe"]
CMD ["--help"]
