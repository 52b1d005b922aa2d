// Numbers as unsigned keys whose order is the best number first: larger before smaller, 0 and -0 alike, NaN last.
#pragma once

#include "common.cuh"

__device__ __forceinline__ unsigned descending_key(float x) {
  if (x != x) return 0xfffffffeu;
  if (x == 0) x = 0;  // -0
  const unsigned bits = (unsigned)__float_as_int(x);
  // the bits of a negative float rise as it falls; a positive one's are inverted, and lie below them
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

__device__ __forceinline__ unsigned long long descending_key(double x) {
  if (x != x) return 0xfffffffffffffffeull;
  if (x == 0) x = 0;
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  return bits & 0x8000000000000000ull ? bits : ~(bits | 0x8000000000000000ull);
}

typedef decltype(descending_key(REAL(0))) KEY;

constexpr KEY LEFT_OUT = ~KEY(0);  // the key of an element that is left out: it comes after all others
