// The inner loops of the row steps. Each body is written once for float and double; what follows
// the bodies gives each type its clones (a template cannot have them).
#include "vector_math.hpp"

#include <algorithm>

#include "../records.hpp"
#include "simd.hpp"

namespace shardloss::detail::cpu {
namespace {

SHARDLOSS_INLINE float exponential(float x) { return ::expf(x); }
SHARDLOSS_INLINE double exponential(double x) { return ::exp(x); }
SHARDLOSS_INLINE float hyperbolic_tangent(float x) { return ::tanhf(x); }
SHARDLOSS_INLINE double hyperbolic_tangent(double x) { return ::tanh(x); }

template <class Real>
SHARDLOSS_INLINE Real maximum_of(const Real* z, std::int64_t n) {
  Real most = minus_infinity<Real>;
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) most = z[i] > most ? z[i] : most;
  return most;
}

template <class Real>
SHARDLOSS_INLINE Real sum_exp_of(const Real* z, std::int64_t n, Real shift) {
  Real total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += exponential(z[i] - shift);
  return total;
}

template <class Real>
SHARDLOSS_INLINE Real sum_exp_centered_of(const Real* z, std::int64_t n, Real shift) {
  Real total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) {
    const Real centered = z[i] - shift;
    const Real mass = exponential(centered);
    total += mass == 0 ? Real(0) : mass * centered;
  }
  return total;
}

template <class Real>
SHARDLOSS_INLINE Real sum_of(const Real* w, std::int64_t n) {
  Real total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += w[i];
  return total;
}

template <class Real>
SHARDLOSS_INLINE Real weighted_sum_of(const Real* w, const Real* z, std::int64_t n) {
  Real total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += w[i] == 0 ? Real(0) : w[i] * z[i];
  return total;
}

template <class Real>
SHARDLOSS_INLINE void add_to(const Real* x, std::int64_t n, Real* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

template <class Real>
SHARDLOSS_INLINE void scale_to(const Real* x, std::int64_t n, Real s, Real* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = s * x[i];
}

template <class Real>
SHARDLOSS_INLINE void multiply_to(const Real* x, const Real* c, std::int64_t n, Real* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * c[i];
}

template <class Real>
SHARDLOSS_INLINE void affine_to(const Real* x, std::int64_t n, Real s, Real b, Real* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = s * x[i] + b;
}

template <class Real>
SHARDLOSS_INLINE void softcap_to(const Real* u, std::int64_t n, Real s, Real cap, Real* z) {
  const Real inner = s / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) z[i] = cap * hyperbolic_tangent(inner * u[i]);
}

template <class Real>
SHARDLOSS_INLINE void softcap_slope_to(const Real* u, std::int64_t n, Real s, Real cap,
                                       Real* slope) {
  const Real twice_inner = -2 * (s / cap);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Real x = twice_inner * u[i];
    const Real e = exponential(x < 0 ? x : -x);
    slope[i] = 4 * e / ((1 + e) * (1 + e));
  }
}

template <class Real>
SHARDLOSS_INLINE void softmax_gradient_to(const Real* z, std::int64_t n, Real max, Real log_sum,
                                          Real a, Real* dz) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Real value = a * exponential((z[i] - max) - log_sum);
    dz[i] = z[i] == minus_infinity<Real> ? Real(0) : value;
  }
}

template <class Real>
SHARDLOSS_INLINE void objective_gradient_to(const Real* z, const Real* w, std::int64_t n, Real max,
                                            Real log_sum, Real a, Real g, Real c, Real* dz) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const Real centered = std::max(z[i] - max, lowest<Real>);
    const Real value = exponential(centered - log_sum) * (a + g * centered) + c * w[i];
    dz[i] = z[i] == minus_infinity<Real> ? Real(0) : value;
  }
}

}  // namespace

#define SHARDLOSS_VECTOR_MATH(Real)                                                                \
  SHARDLOSS_CLONES Real maximum(const Real* z, std::int64_t n) { return maximum_of(z, n); }        \
  SHARDLOSS_CLONES Real sum_exp(const Real* z, std::int64_t n, Real shift) {                       \
    return sum_exp_of(z, n, shift);                                                                \
  }                                                                                                \
  SHARDLOSS_CLONES Real sum_exp_centered(const Real* z, std::int64_t n, Real shift) {              \
    return sum_exp_centered_of(z, n, shift);                                                       \
  }                                                                                                \
  SHARDLOSS_CLONES Real sum(const Real* w, std::int64_t n) { return sum_of(w, n); }                \
  SHARDLOSS_CLONES Real weighted_sum(const Real* w, const Real* z, std::int64_t n) {               \
    return weighted_sum_of(w, z, n);                                                               \
  }                                                                                                \
  SHARDLOSS_CLONES void add(const Real* x, std::int64_t n, Real* y) { add_to(x, n, y); }           \
  SHARDLOSS_CLONES void scale(const Real* x, std::int64_t n, Real s, Real* y) {                    \
    scale_to(x, n, s, y);                                                                          \
  }                                                                                                \
  SHARDLOSS_CLONES void multiply(const Real* x, const Real* c, std::int64_t n, Real* y) {          \
    multiply_to(x, c, n, y);                                                                       \
  }                                                                                                \
  SHARDLOSS_CLONES void affine(const Real* x, std::int64_t n, Real s, Real b, Real* y) {           \
    affine_to(x, n, s, b, y);                                                                      \
  }                                                                                                \
  SHARDLOSS_CLONES void softcap(const Real* u, std::int64_t n, Real s, Real cap, Real* z) {        \
    softcap_to(u, n, s, cap, z);                                                                   \
  }                                                                                                \
  SHARDLOSS_CLONES void softcap_slope(const Real* u, std::int64_t n, Real s, Real cap,             \
                                      Real* slope) {                                               \
    softcap_slope_to(u, n, s, cap, slope);                                                         \
  }                                                                                                \
  SHARDLOSS_CLONES void softmax_gradient(const Real* z, std::int64_t n, Real max, Real log_sum,    \
                                         Real a, Real* dz) {                                       \
    softmax_gradient_to(z, n, max, log_sum, a, dz);                                                \
  }                                                                                                \
  SHARDLOSS_CLONES void objective_gradient(const Real* z, const Real* w, std::int64_t n, Real max, \
                                           Real log_sum, Real a, Real g, Real c, Real* dz) {       \
    objective_gradient_to(z, w, n, max, log_sum, a, g, c, dz);                                     \
  }

SHARDLOSS_VECTOR_MATH(float)
SHARDLOSS_VECTOR_MATH(double)
#undef SHARDLOSS_VECTOR_MATH

}  // namespace shardloss::detail::cpu
