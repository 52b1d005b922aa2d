// Numbers as unsigned keys in the order best first: larger before smaller, 0 and -0 equal, NaN last.
#pragma once

#include "common.cuh"

__device__ __forceinline__ unsigned descending_key(float x) {
  if (x != x) return 0xfffffffeu;
  if (x == 0) x = 0;  // turns -0 into 0
  const unsigned bits = (unsigned)__float_as_int(x);
  // A negative float's bits rise as it falls. A positive one's are inverted, and lie below them.
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

__device__ __forceinline__ unsigned long long descending_key(double x) {
  if (x != x) return 0xfffffffffffffffeull;
  if (x == 0) x = 0;
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  return bits & 0x8000000000000000ull ? bits : ~(bits | 0x8000000000000000ull);
}

typedef decltype(descending_key(REAL(0))) KEY;

constexpr KEY LEFT_OUT = ~KEY(0);  // the key of a removed element, after all others
