// A stable merge sort of keys and their places. See proposal.py.
#include "sort.cuh"

constexpr int CHUNK = 2048;        // numbers that one block sorts in shared memory; proposal.py's CHUNK
constexpr int SORT_THREADS = 512;

// scores, keys: count elements.
extern "C" __global__ void descending_keys(int count, const REAL* scores, KEY* keys) {
  LOOP(i, count) keys[i] = descending_key(scores[i]);
}

// keys: count elements, sorted within each CHUNK by a block. order: count elements, each key's index before sorting.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort_chunks(int count, KEY* keys, int* order) {
  __shared__ KEY key[CHUNK];
  __shared__ int place[CHUNK];
  const int start = blockIdx.x * CHUNK, used = min(count - start, CHUNK);
  int size = 2;  // a power of two, at least `used`
  while (size < used) size *= 2;
  for (int i = threadIdx.x; i < size; i += SORT_THREADS) {
    key[i] = i < used ? keys[start + i] : LEFT_OUT;
    place[i] = start + i;  // padding gets an index after all elements, so it comes last among equal keys
  }
  for (int length = 2; length <= size; length *= 2) {  // bitonic: sequences of `length`, alternately ascending and descending
    for (int apart = length / 2; apart; apart /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < size / 2; pair += SORT_THREADS) {
        const int i = 2 * pair - (pair & (apart - 1)), j = i + apart;  // pair with a 0 inserted at the bit `apart`
        const bool later = key[i] > key[j] || (key[i] == key[j] && place[i] > place[j]);
        if (later == ((i & length) == 0)) {  // ascending if this bit is 0, as for all in the last round
          const KEY k = key[i];
          const int p = place[i];
          key[i] = key[j], place[i] = place[j];
          key[j] = k, place[j] = p;
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < used; i += SORT_THREADS) {
    keys[start + i] = key[i];
    order[start + i] = place[i];
  }
}

// Merges pairs of sorted runs of `run` elements. Each element finds by bisection how many of the other run come before it.
extern "C" __global__ void merge_runs(int count, int run, const KEY* keys, const int* order, KEY* merged, int* merged_order) {
  LOOP(i, count) {
    const unsigned base = i / (2u * run) * (2u * run), middle = base + run;
    const bool second = i >= middle;
    const KEY key = keys[i];
    unsigned low = second ? base : min(middle, (unsigned)count);
    unsigned high = second ? middle : min(middle + run, (unsigned)count);  // the last run may be short or missing
    const unsigned sister = low;  // where the other run starts
    while (low < high) {
      const unsigned half = (low + high) / 2;
      if (keys[half] < key || (second && keys[half] == key)) low = half + 1;  // of equal keys, those of the first run come first
      else high = half;
    }
    const unsigned to = (second ? i - run : i) + (low - sister);
    merged[to] = key;
    merged_order[to] = order[i];
  }
}
