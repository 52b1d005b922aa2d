// BoxAnnotatorOHEM. See layers/proposal/ohem.py.
#include "loss.cuh"

constexpr unsigned LANES = 32;  // threads for each roi

// rois (R, 5, inner), losses and labels (R, inner), `count` of them. chosen: 1 for the per_image rois with the greatest losses
// of each image; ties go to the first. *wrong becomes count - i for the first invalid batch index i.
extern "C" __global__ void choose_hardest(int count, int inner, const REAL* rois, const REAL* losses, const REAL* labels,
                                          int per_image, int ignore, unsigned char* chosen, REAL* kept_labels, int* wrong) {
  const unsigned lane = threadIdx.x % LANES, i = blockIdx.x * (LOSS_THREADS / LANES) + threadIdx.x / LANES;
  const bool here = i < (unsigned)count;
  double before = 0;
  if (here) {
    const REAL image = rois[i / inner * 5 * inner + i % inner], loss = losses[i];
    if (lane == 0 && !(image >= 0 && image == floor(image))) atomicMax(wrong, count - (int)i);
    for (unsigned j = lane; j < (unsigned)count; j += LANES) {
      if (rois[j / inner * 5 * inner + j % inner] != image) continue;
      const REAL other = losses[j];
      const bool tie = other == loss || (other != other && loss != loss);  // here, NaN equals NaN
      before += other > loss || (loss != loss && other == other) || (tie && j < i);  // NaN comes last
    }
  }
  before = lanes_sum(before, LANES);
  if (lane || !here) return;
  chosen[i] = before < per_image;
  kept_labels[i] = before < per_image ? labels[i] : REAL(ignore);
}

// weights, kept (R, channels, inner), `count` elements.
extern "C" __global__ void keep_hardest(int count, int channels, int inner, const unsigned char* chosen, const REAL* weights,
                                        REAL* kept) {
  LOOP(i, count) kept[i] = chosen[i / (channels * inner) * inner + i % inner] ? weights[i] : REAL(0);
}
