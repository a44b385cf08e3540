/// \file
/// The inner loops of the row steps, over a block of consecutive elements of one row. NaN and
/// infinities travel as IEEE 754 says unless a comment says otherwise.
#pragma once

#include <cstdint>

namespace shardloss::detail::cpu {

/// Elements that the row steps treat at a time: a few buffers of them stay in the first-level
/// cache.
inline constexpr std::int64_t block_size = 512;

/// Stands for z - M wherever that is lower and is multiplied: its exponential is 0 long before.
template <class Real>
inline constexpr Real lowest = Real(-1e4);

/// max z, skipping NaN; -inf for no elements.
float maximum(const float* z, std::int64_t n);
double maximum(const double* z, std::int64_t n);

/// sum exp(z - shift)
float sum_exp(const float* z, std::int64_t n, float shift);
double sum_exp(const double* z, std::int64_t n, double shift);

/// sum exp(z - shift) (z - shift), a vanished exponential contributing 0 (not 0 x -inf).
float sum_exp_centered(const float* z, std::int64_t n, float shift);
double sum_exp_centered(const double* z, std::int64_t n, double shift);

/// sum w
float sum(const float* w, std::int64_t n);
double sum(const double* w, std::int64_t n);

/// sum w z, a weight of 0 contributing 0 whatever z is.
float weighted_sum(const float* w, const float* z, std::int64_t n);
double weighted_sum(const double* w, const double* z, std::int64_t n);

/// y += x
void add(const float* x, std::int64_t n, float* y);
void add(const double* x, std::int64_t n, double* y);

/// y = s x; y may be x.
void scale(const float* x, std::int64_t n, float s, float* y);
void scale(const double* x, std::int64_t n, double s, double* y);

/// y = x c; y may be x or c.
void multiply(const float* x, const float* c, std::int64_t n, float* y);
void multiply(const double* x, const double* c, std::int64_t n, double* y);

/// y = s x + b; y may be x.
void affine(const float* x, std::int64_t n, float s, float b, float* y);
void affine(const double* x, std::int64_t n, double s, double b, double* y);

/// z = cap tanh(s u / cap)
void softcap(const float* u, std::int64_t n, float s, float cap, float* z);
void softcap(const double* u, std::int64_t n, double s, double cap, double* z);

/// slope = dz / d(s u) = 1 - (z / cap)^2 = 4 e / (1 + e)^2, e = exp(-2 |s u / cap|): the first form
/// cancels where z is near cap.
void softcap_slope(const float* u, std::int64_t n, float s, float cap, float* slope);
void softcap_slope(const double* u, std::int64_t n, double s, double cap, double* slope);

/// dz = a p, p = exp(z - max - log_sum), and 0 where z = -inf; dz may be z.
void softmax_gradient(const float* z, std::int64_t n, float max, float log_sum, float a, float* dz);
void softmax_gradient(const double* z, std::int64_t n, double max, double log_sum, double a,
                      double* dz);

/// dz = p (a + g (z - max)) + c w, and 0 where z = -inf; dz may be z.
void objective_gradient(const float* z, const float* w, std::int64_t n, float max, float log_sum,
                        float a, float g, float c, float* dz);
void objective_gradient(const double* z, const double* w, std::int64_t n, double max,
                        double log_sum, double a, double g, double c, double* dz);

}  // namespace shardloss::detail::cpu
