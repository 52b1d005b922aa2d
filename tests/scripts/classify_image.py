"""In the style of the notebook on classification: an image through a Transformer, batches, parameters, a picture of the filters.

classify_image.py DEPLOY.prototxt WEIGHTS.caffemodel IMAGE MEAN.npy FILTERS.png
"""

import os
import sys

import numpy as np
from PIL import Image

caffe_root = "../"
sys.path.insert(0, caffe_root + "python")

os.environ["GLOG_minloglevel"] = "2"
import caffe

model_def, model_weights, image_file, mean_file, picture = sys.argv[1:]
if not os.path.isfile(model_weights):
    sys.exit("download the weights first")

caffe.set_mode_cpu()
net = caffe.Net(model_def, model_weights, caffe.TEST)

mu = np.load(mean_file).mean(1).mean(1)  # the mean over pixels: blue, green, red
print("mean-subtracted values:", list(zip("BGR", mu.astype(np.float).round(1).tolist())))

transformer = caffe.io.Transformer({"data": net.blobs["data"].data.shape})
transformer.set_transpose("data", (2, 0, 1))
transformer.set_mean("data", mu)
transformer.set_raw_scale("data", 255)
transformer.set_channel_swap("data", (2, 1, 0))

net.blobs["data"].reshape(5, 3, 12, 16)
image = caffe.io.load_image(image_file)
net.blobs["data"].data[...] = transformer.preprocess("data", image)
output = net.forward()
output_prob = output["prob"][0]
print("predicted class is:", output_prob.argmax())
print("probabilities sum to %.3f" % output_prob.sum())
assert np.allclose(output["prob"], output_prob), "every row of the batch is the same image"

for layer_name, blob in net.blobs.items():
    print(layer_name + "\t" + str(blob.data.shape))
for layer_name, param in net.params.items():
    print(layer_name + "\t" + str(param[0].data.shape), str(param[1].data.shape))


def vis_square(data):
    """A picture of an array (n, height, width), or of (n, height, width, 3): a grid of about the root of n each way."""
    data = (data - data.min()) / (data.max() - data.min())
    n = int(np.ceil(np.sqrt(data.shape[0])))
    padding = ((0, n**2 - data.shape[0]), (0, 1), (0, 1)) + ((0, 0),) * (data.ndim - 3)
    data = np.pad(data, padding, mode="constant", constant_values=1)
    data = data.reshape((n, n) + data.shape[1:]).transpose((0, 2, 1, 3) + tuple(range(4, data.ndim + 1)))
    data = data.reshape((n * data.shape[1], n * data.shape[3]) + data.shape[4:])
    Image.fromarray((data * 255).astype(np.uint8)).save(picture)


filters = net.params["conv1"][0].data
vis_square(filters.transpose(0, 2, 3, 1))
feat = net.blobs["conv1"].data[0, :6]
print("features:", feat.shape, "positive:", bool((feat >= 0).all()))

out = net.forward(end="pool1")
print("stopped at:", list(out))
again = net.forward(start="fc", end="prob")
print("the same from there on:", bool(np.allclose(again["prob"][0], output_prob)))

classifier = caffe.Classifier(model_def, model_weights, image_dims=(16, 20), mean=mu, raw_scale=255, channel_swap=(2, 1, 0))
scores = classifier.predict([image, image])
print("classifier:", scores.shape, "top:", scores[0].argmax())
