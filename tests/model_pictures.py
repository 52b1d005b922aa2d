"""Draw the pictures of docs/models, and print what the commands print. By hand, not in CI.

    PYTHONPATH=.:tests/support python tests/model_pictures.py FOLDER

FOLDER gets the made scenes that the commands take, what the commands write, and the pictures. Nets with published weights are
in ../shared/zoo, HED's prototxt in ../shared/wild; the others are the repository's own, or made here.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from people_maps import maps_of, standing
from PIL import Image, ImageDraw, ImageFilter

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.drawings import default_font
from minicaffe.data.images import resize_bilinear
from minicaffe.detection.flow import fill_template
from minicaffe.detection.pose import COCO
from minicaffe.formats.flo import write_flo
from minicaffe.formats.prototxt import parse_net

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
HED = SHARED / "wild/s9xie__hed/examples/hed/deploy.prototxt"
FLOW = """input: "first" input_shape { dim: 1 dim: 3 dim: $TARGET_HEIGHT$ dim: $TARGET_WIDTH$ }
input: "second" input_shape { dim: 1 dim: 3 dim: $TARGET_HEIGHT$ dim: $TARGET_WIDTH$ }
layer { name: "mvn1" type: "MVN" bottom: "first" top: "a" mvn_param { across_channels: true } }
layer { name: "mvn2" type: "MVN" bottom: "second" top: "b" mvn_param { across_channels: true } }
layer { name: "corr" type: "Correlation" bottom: "a" bottom: "b" top: "corr"
  correlation_param { kernel_size: 9 max_displacement: 8 pad: 12 stride_1: 1 stride_2: 1 } }
layer { name: "sharp" type: "Power" bottom: "corr" top: "sharp" power_param { scale: 40 } }
layer { name: "prob" type: "Softmax" bottom: "sharp" top: "prob" }
layer { name: "predict_flow_final" type: "Convolution" bottom: "prob" top: "predict_flow_final"
  convolution_param { num_output: 2 kernel_size: 1 bias_term: false } }
"""
"""The displacement of each pixel's neighbourhood: the mean of all, weighted by how well the images agree there."""


def run(text: str) -> None:
    """Run a command and print it and its output."""
    print(f"$ minicaffe {text}")
    result = CliRunner().invoke(main, shlex.split(text))
    print(result.output)
    assert result.exit_code == 0, result.exception


def car() -> Image.Image:
    """Return the rear of a car with a plate, 480 x 360."""
    picture = Image.new("RGB", (480, 360), (150, 160, 170))
    pen = ImageDraw.Draw(picture)
    pen.rectangle([0, 230, 480, 360], fill=(95, 93, 90))
    pen.rounded_rectangle([90, 68, 390, 300], 30, fill=(120, 22, 28))
    pen.polygon([(128, 83), (352, 83), (375, 165), (105, 165)], fill=(40, 48, 60))
    pen.rounded_rectangle([98, 180, 382, 270], 15, fill=(105, 18, 24))
    for left in (105, 319):
        pen.rectangle([left, 188, left + 56, 218], fill=(235, 120, 80))
        pen.rectangle([left, 285, left + 45, 322], fill=(25, 25, 25))
    pen.rectangle([184, 225, 296, 259], fill=(20, 60, 170), outline=(240, 240, 240))
    pen.text((193, 228), "AF 61903", font=default_font(24), fill="white")
    return picture.filter(ImageFilter.GaussianBlur(0.6))


def face() -> Image.Image:
    """Return a drawn face, 320 x 240."""
    picture = Image.new("RGB", (320, 240), (120, 140, 150))
    pen = ImageDraw.Draw(picture)

    def oval(x: float, y: float, across: float, down: float, fill: tuple[int, int, int]) -> None:
        pen.ellipse([160 + x - across, 120 + y - down, 160 + x + across, 120 + y + down], fill=fill)

    oval(0, -12, 66, 84, (60, 40, 30))
    pen.rectangle([134, 180, 186, 240], fill=(200, 150, 120))
    oval(0, 6, 54, 72, (224, 178, 148))
    for side in (-22, 22):
        oval(side, -6, 12, 7, (250, 250, 250))
        oval(side, -6, 6, 6, (60, 40, 30))
        pen.arc([145 + side, 94, 175 + side, 112], 200, 340, fill=(60, 40, 30), width=4)
    pen.polygon([(157, 120), (163, 120), (169, 148), (151, 148)], fill=(206, 156, 126))
    oval(0, 48, 20, 7, (170, 70, 70))
    pen.line([140, 168, 180, 168], fill=(110, 40, 40), width=2)
    light = 1.05 - 0.25 * ((np.arange(320) - 130) / 200) ** 2
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.5))) * light[:, None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def pair() -> None:
    """first.png and second.png, 160 x 120: a disc moves by (6, -3) over a ground that moves by (-2, 1); true.flo."""
    noise = np.random.default_rng(7)
    ground, disc = (resize_bilinear(noise.uniform(0, 255, (60, 80, 3)), 140, 190).astype(np.uint8) for _ in range(2))
    y, x = np.mgrid[:120, :160]
    inside = (x - 70) ** 2 + (y - 65) ** 2 < 35**2
    moved = (x - 76) ** 2 + (y - 62) ** 2 < 35**2
    first = np.where(inside[..., None], disc[10:130, 10:170], ground[10:130, 10:170])
    second = np.where(moved[..., None], disc[13:133, 4:164], ground[9:129, 12:172])
    Image.fromarray(first).save("first.png")
    Image.fromarray(second).save("second.png")
    write_flo("true.flo", np.where(inside, np.array([6, -3])[:, None, None], np.array([-2, 1])[:, None, None]))


def flow() -> None:
    pair()
    Path("deploy.prototxt.template").write_text(FLOW)
    net = Net(parse_net(fill_template(FLOW, 120, 160)), TEST)
    rows, columns = np.mgrid[-8:9, -8:9]
    net.params["predict_flow_final"][0].data[...] = np.stack([columns, rows]).reshape(2, 289, 1, 1)
    net.save("flow.caffemodel")
    run("flow deploy.prototxt.template flow.caffemodel first.png second.png -o first.flo --draw flow.png --truth true.flo")
    beside("flow", "first.png", "second.png", "flow.png", factor=2)


def pose() -> None:
    """People that OpenPose's rules find in maps made of known skeletons, on a plain ground."""
    people = [standing(COCO, 80, 40), standing(COCO, 210, 55, 0.8), standing(COCO, 285, 30, 1.05, "RWrist RElbow")]
    maps = maps_of(COCO, people, 240, 368)
    text = (
        'input: "image" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }\nlayer { name: "rest" type: "Silence" bottom: "image" }\n'
    )
    rows, columns = maps.shape[1:]
    shape = f"dim: 1 dim: {len(maps)} dim: {rows} dim: {columns}"
    text += f'layer {{ name: "net_output" type: "Parameter" top: "net_output" parameter_param {{ shape {{ {shape} }} }} }}\n'
    Path("maps.prototxt").write_text(text)
    net = Net("maps.prototxt", TEST)
    net.params["net_output"][0].data[...] = maps
    net.save("maps.caffemodel")
    heat = (255 * maps[:18].max(axis=0)).astype(np.uint8)
    field = np.abs(maps[19:]).max(axis=0)
    shown = np.stack([heat, (120 * np.minimum(field, 1)).astype(np.uint8), heat // 3], axis=2)
    Image.fromarray(shown).resize((368, 240), Image.Resampling.NEAREST).save("heat.png")
    Image.new("RGB", (368, 240), (70, 76, 84)).save("ground.png")
    run("pose maps.prototxt maps.caffemodel ground.png --height 240 --out .")
    beside("pose", "heat.png", "ground_pose.png")


def beside(name: str, *files: str, factor: int = 1, suffix: str = "png") -> None:
    """Pictures of one size in a row, as models_NAME.SUFFIX."""
    pictures = [Image.open(file).convert("RGB") for file in files]
    width, height = (factor * side for side in pictures[0].size)
    whole = Image.new("RGB", (len(pictures) * (width + 4) - 4, height), "white")
    for i, picture in enumerate(pictures):
        whole.paste(picture.resize((width, height), Image.Resampling.NEAREST), (i * (width + 4), 0))
    whole.save(f"models_{name}.{suffix}", optimize=True, quality=88)


def draw_all(folder: str) -> None:
    os.chdir(folder)
    examples, zoo = ROOT / "examples", SHARED / "zoo"
    car().save("car.png")
    face().save("face.png")
    Path("plates.txt").write_text("plate\n")
    Path("faces.txt").write_text("face\n")
    plates, faces = zoo / "hyperlpr_mininet_ssd/mininet_ssd_v1", zoo / "yufacedetect_v2/yufacedetectnet-open-v2"
    scale = "--mean 127.5,127.5,127.5 --scale-factor 0.007843"
    run(f"detect {plates}.prototxt {plates}.caffemodel car.png {scale} --classes plates.txt --draw boxes")
    run(f"detect {faces}.prototxt {faces}.caffemodel face.png --classes faces.txt --draw libface")
    for name, stem in (("ultra", "ultraface/RFB-320"), ("mtcnn", "mtcnn/det1")):
        run(f"detect {zoo}/{stem}.prototxt {zoo}/{stem}.caffemodel face.png --draw {name}")
    beside("plate", "boxes/car.png", suffix="jpg")
    beside("face", "libface/face.png", "ultra/face.png", "mtcnn/face.png", suffix="jpg")
    cifar = zoo / "cifar10_bvlc_examples/cifar10_full"
    Path("cifar.txt").write_text("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n")
    files = f"{cifar}.prototxt {cifar}_iter_60000.caffemodel.h5 car.png"
    run(f"classify {files} --mean 125,123,114 --classes cifar.txt --top 3 --draw classes")
    beside("classes", "classes/car.png", suffix="jpg")
    deformable, shapes = examples / "deformable", examples / "shapes"
    files = f"{deformable}/test.prototxt {deformable}/deformable_rfcn.caffemodel {shapes}/scene.png"
    run(f"detect {files} --cfg {shapes}/shapes.yml --classes {shapes}/classes.txt --draw deformable --threshold 0.9")
    beside("deformable", "deformable/scene.png", suffix="jpg")
    segments = examples / "segments"
    options = "--mean 128,128,128 --scale-factor 0.0078125"
    files = f"{segments}/test.prototxt {segments}/segments.caffemodel {segments}/scene.png"
    run(f"segment {files} {options} --classes {segments}/classes.txt --out masks")
    beside("segments", str(segments / "scene.png"), "masks/scene_mask.png", "masks/scene_overlay.png", factor=2)
    drop = 'layer { name: "drop" type: "Dropout" bottom: "conv5" top: "conv5" dropout_param { sample_weights_test: true } }'
    after = 'layer {\n  name: "up4"'
    Path("bayesian.prototxt").write_text((segments / "test.prototxt").read_text().replace(after, f"{drop}\n{after}"))
    files = f"bayesian.prototxt {segments}/segments.caffemodel {segments}/scene.png"
    run(f"segment {files} {options} --classes {segments}/classes.txt --out samples --samples 20")
    beside("variance", str(segments / "scene.png"), "samples/scene_mask.png", "samples/scene_variance.png", factor=2)
    scene = examples / "shapes/scene.png"
    mean = "--mean 104.00699,116.66877,122.67892"
    run(f"segment {HED} {scene} --random-weights {mean} --out edges")
    beside("hed", "edges/scene_map.png", suffix="jpg")
    flow()
    pose()


if __name__ == "__main__":
    draw_all(sys.argv[1])
