// A plain loop of the permutohedral lattice's Gaussian filter (Adams, Baek, Davis 2010), for benchmarks/forks.py: points are
// splatted to the corners of their simplices, the lattice is blurred along its d + 1 directions, and sliced at the points. The
// lattice points are found in a hash table and hold the values of all channels side by side. Compiled with g++ -O2.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Lattice {
  int count, d, points;
  std::vector<int> corners;        // (count, d + 1)
  std::vector<float> shares;       // (count, d + 1)
  std::vector<int> before, after;  // (d + 1, points); 0 stands for no neighbour, lattice points count from 1

  Lattice(const float* features, int count, int d);
};

// Lattice points by their coordinates, with open addressing.
struct Table {
  int d, points = 0;
  std::vector<int16_t> keys;  // (points, d)
  std::vector<int> slots;     // number of the point, from 1; 0 is free

  explicit Table(int d) : d(d), slots(1 << 15) {}

  size_t slot(const int16_t* key) const {
    uint32_t hash = 0;
    for (int i = 0; i < d; ++i) hash = (hash + static_cast<uint16_t>(key[i])) * 2531011u;
    hash ^= hash >> 15;
    for (size_t at = hash;; ++at) {
      const int point = slots[at &= slots.size() - 1];
      if (!point || !std::memcmp(&keys[static_cast<size_t>(point - 1) * d], key, d * sizeof(int16_t))) return at;
    }
  }

  int find(const int16_t* key) const { return slots[slot(key)]; }

  int add(const int16_t* key) {
    size_t at = slot(key);
    if (slots[at]) return slots[at];
    keys.insert(keys.end(), key, key + d);
    slots[at] = ++points;
    if (2 * static_cast<size_t>(points) > slots.size()) {
      slots.assign(2 * slots.size(), 0);
      for (int point = 1; point <= points; ++point) slots[slot(&keys[static_cast<size_t>(point - 1) * d])] = point;
    }
    return points;
  }
};

Lattice::Lattice(const float* features, int count, int d)
    : count(count), d(d), corners(static_cast<size_t>(count) * (d + 1)), shares(corners.size()) {
  Table table(d);
  std::vector<int16_t> key(d), less(d), more(d);
  std::vector<float> scale(d), elevated(d + 1), barycentric(d + 2);
  std::vector<int> nearest(d + 1), rank(d + 1);
  for (int i = 0; i < d; ++i) scale[i] = std::sqrt(2.0 / 3.0) * (d + 1) / std::sqrt((i + 1.0) * (i + 2.0));
  for (int n = 0; n < count; ++n, features += d) {
    float sum = 0;
    for (int i = d; i > 0; --i) {
      const float scaled = features[i - 1] * scale[i - 1];
      elevated[i] = sum - i * scaled;
      sum += scaled;
    }
    elevated[0] = sum;
    int off = 0;
    for (int i = 0; i <= d; ++i) {
      const int rounded = std::lrint(elevated[i] / (d + 1));
      nearest[i] = rounded * (d + 1);
      off += rounded;
      rank[i] = 0;
    }
    for (int i = 0; i < d; ++i) {
      for (int j = i + 1; j <= d; ++j) {
        ++(elevated[i] - nearest[i] < elevated[j] - nearest[j] ? rank[i] : rank[j]);
      }
    }
    for (int i = 0; i <= d; ++i) {
      rank[i] += off;
      const int turn = rank[i] < 0 ? d + 1 : rank[i] > d ? -d - 1 : 0;
      rank[i] += turn;
      nearest[i] += turn;
    }
    barycentric.assign(d + 2, 0);
    for (int i = 0; i <= d; ++i) {
      const float v = (elevated[i] - nearest[i]) / (d + 1);
      barycentric[d - rank[i]] += v;
      barycentric[d + 1 - rank[i]] -= v;
    }
    barycentric[0] += 1 + barycentric[d + 1];
    for (int k = 0; k <= d; ++k) {
      for (int i = 0; i < d; ++i) key[i] = static_cast<int16_t>(nearest[i] + (rank[i] <= d - k ? k : k - d - 1));
      corners[static_cast<size_t>(n) * (d + 1) + k] = table.add(key.data());
      shares[static_cast<size_t>(n) * (d + 1) + k] = barycentric[k];
    }
  }
  points = table.points;
  for (int j = 0; j <= d; ++j) {
    for (const int16_t* from = table.keys.data(); from != table.keys.data() + table.keys.size(); from += d) {
      for (int i = 0; i < d; ++i) {
        const int step = i == j ? -d : 1;
        less[i] = static_cast<int16_t>(from[i] - step);
        more[i] = static_cast<int16_t>(from[i] + step);
      }
      before.push_back(table.find(less.data()));
      after.push_back(table.find(more.data()));
    }
  }
}

}  // namespace

extern "C" void* lattice_new(const float* features, int count, int d) { return new Lattice(features, count, d); }

extern "C" void lattice_delete(void* lattice) { delete static_cast<Lattice*>(lattice); }

// y (channels, count) = x (channels, count), filtered.
extern "C" void lattice_filter(const void* pointer, const float* x, int channels, float* y) {
  const Lattice& lattice = *static_cast<const Lattice*>(pointer);
  const int d = lattice.d, count = lattice.count;
  std::vector<float> values(static_cast<size_t>(lattice.points + 1) * channels), blurred(values.size());
  for (int n = 0; n < count; ++n) {
    for (int k = 0; k <= d; ++k) {
      float* value = &values[static_cast<size_t>(lattice.corners[n * (d + 1) + k]) * channels];
      const float share = lattice.shares[n * (d + 1) + k];
      for (int c = 0; c < channels; ++c) value[c] += share * x[static_cast<size_t>(c) * count + n];
    }
  }
  for (int j = 0; j <= d; ++j) {
    for (int i = 0; i < lattice.points; ++i) {
      const size_t at = static_cast<size_t>(j) * lattice.points + i;
      const float* here = &values[static_cast<size_t>(i + 1) * channels];
      const float* low = &values[static_cast<size_t>(lattice.before[at]) * channels];
      const float* high = &values[static_cast<size_t>(lattice.after[at]) * channels];
      float* to = &blurred[static_cast<size_t>(i + 1) * channels];
      for (int c = 0; c < channels; ++c) to[c] = here[c] + 0.5f * (low[c] + high[c]);
    }
    values.swap(blurred);
  }
  const float scale = 1 / (1 + std::pow(2.0f, -d));
  std::vector<float> total(channels);
  for (int n = 0; n < count; ++n) {
    total.assign(channels, 0);
    for (int k = 0; k <= d; ++k) {
      const float* value = &values[static_cast<size_t>(lattice.corners[n * (d + 1) + k]) * channels];
      const float share = lattice.shares[n * (d + 1) + k] * scale;
      for (int c = 0; c < channels; ++c) total[c] += share * value[c];
    }
    for (int c = 0; c < channels; ++c) y[static_cast<size_t>(c) * count + n] = total[c];
  }
}
