// The layers that apply one function to every element: y = f(x), dx = dy f'(x). See layers/neuron/neuron.py.
//
// All kernels have the same arguments: a, b, c are the function's constants, as in the layer's `constants`. Forward's y may be
// x; kept is nullptr, or a copy of x. Backward's dx may be dy.
#include "common.cuh"

#define VALUE(expression)          \
  LOOP(i, count) {                 \
    const REAL v = x[i];           \
    if (kept) kept[i] = v;         \
    y[i] = expression;             \
  }

#define SLOPE(expression)          \
  LOOP(i, count) {                 \
    const REAL v = x[i];           \
    dx[i] = dy[i] * (expression);  \
  }

__device__ REAL logistic(REAL v) { return tanh(v * REAL(0.5)) * REAL(0.5) + REAL(0.5); }

extern "C" __global__ void abs_val(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) { VALUE(fabs(v)) }
extern "C" __global__ void abs_val_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v > 0 ? REAL(1) : v < 0 ? REAL(-1) : v)
}

extern "C" __global__ void bnll(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v > 0 ? v + log1p(exp(-v)) : log1p(exp(v)))
}
extern "C" __global__ void bnll_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(logistic(v))
}

// a: min, b: max.
extern "C" __global__ void clip(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v < a ? a : v > b ? b : v)
}
extern "C" __global__ void clip_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v >= a && v <= b ? REAL(1) : REAL(0))
}

// a: alpha.
extern "C" __global__ void elu(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v > 0 ? v : a * expm1(v))
}
extern "C" __global__ void elu_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v > 0 ? REAL(1) : a * exp(v))
}

// a: scale, b: shift, both times ln(base).
extern "C" __global__ void exponential(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(exp(v * a + b))
}
extern "C" __global__ void exponential_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(a * exp(a * v + b))
}

// a: scale, b: shift.
extern "C" __global__ void hard_sigmoid(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v * a + b < 0 ? REAL(0) : v * a + b > 1 ? REAL(1) : v * a + b)
}
extern "C" __global__ void hard_sigmoid_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v * a + b > 0 && v * a + b < 1 ? a : REAL(0))
}

// a: divisor, b: shift.
extern "C" __global__ void hard_swish(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v * (v / a + b < 0 ? REAL(0) : v / a + b > 1 ? REAL(1) : v / a + b))
}
extern "C" __global__ void hard_swish_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v / a + b > 0 && v / a + b < 1 ? 2 * v / a + b : v / a + b > 0 ? REAL(1) : REAL(0))
}

// a: scale, b: shift, c: 1 / ln(base).
extern "C" __global__ void logarithm(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(log(v * a + b) * c)
}
extern "C" __global__ void logarithm_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(c * a / (b + a * v))
}

// a: scale, b: shift, c: power. A power of 1 is skipped. A power or a scale of 0 gives a constant.
extern "C" __global__ void power(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  const REAL constant = c == 0 ? REAL(1) : pow(b, c);
  VALUE(a * c == 0 ? constant : c == 1 ? v * a + b : pow(v * a + b, c))
}
extern "C" __global__ void power_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  const REAL factor = c * a;
  SLOPE(factor == 0 || c == 1 ? factor : factor * pow(b + a * v, c - 1))
}

// a: negative_slope, b: the upper limit.
extern "C" __global__ void relu6(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE((v > 0 ? v : v * a) > b ? b : v > 0 ? v : v * a)
}
extern "C" __global__ void relu6_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE((v > 0 ? v : v * a) < b ? (v > 0 ? REAL(1) : a) : REAL(0))
}

// a: beta.
extern "C" __global__ void swish(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v * logistic(a * v))
}
extern "C" __global__ void swish_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(logistic(a * v) + a * v * logistic(a * v) * (1 - logistic(a * v)))
}

extern "C" __global__ void hyperbolic_tangent(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(tanh(v))
}
extern "C" __global__ void hyperbolic_tangent_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(1 - tanh(v) * tanh(v))
}

// a: threshold.
extern "C" __global__ void threshold(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v > a ? REAL(1) : REAL(0))
}
extern "C" __global__ void threshold_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  LOOP(i, count) dx[i] = dy[i] * REAL(0);
}

extern "C" __global__ void cosine(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) { VALUE(cos(v)) }
extern "C" __global__ void cosine_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(-sin(v))
}

__device__ REAL mish_factor(REAL v) { return tanh(v > 0 ? v + log1p(exp(-v)) : log1p(exp(v))); }

extern "C" __global__ void mish(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v * mish_factor(v))
}
extern "C" __global__ void mish_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(mish_factor(v) + v * (1 - mish_factor(v) * mish_factor(v)) * logistic(v))
}

extern "C" __global__ void neg_relu(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v > 0 ? REAL(0) : v)
}
extern "C" __global__ void neg_relu_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v < 0 ? REAL(1) : REAL(0))
}

// a: lambda, b: alpha.
extern "C" __global__ void selu(int count, const REAL* x, REAL a, REAL b, REAL c, REAL* y, REAL* kept) {
  VALUE(v > 0 ? a * v : a * b * expm1(v))
}
extern "C" __global__ void selu_backward(int count, const REAL* x, REAL a, REAL b, REAL c, const REAL* dy, REAL* dx) {
  SLOPE(v > 0 ? a : a * b * exp(v))
}
