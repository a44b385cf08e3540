/// \file
/// Matrix products of row-major matrices, through CBLAS.
#pragma once

#include <cstdint>
#include <string>

namespace shardloss::detail::cpu {

/// A row-major matrix, or a part of one; `ld` elements lie between two rows.
template <class Element>
struct Matrix {
  Element* data = nullptr;
  std::int64_t ld = 0;

  Element* row(std::int64_t index) const { return data + index * ld; }
  Matrix from_row(std::int64_t index) const { return {row(index), ld}; }
  operator Matrix<const Element>() const {  // NOLINT(google-explicit-constructor)
    return {data, ld};
  }
};

/// c[m, n] = alpha a[m, k] b[n, k]^T + beta c. With beta 0 the result is written without being
/// read, here and below: NaN in fresh memory stays out of it.
template <class Real>
void multiply_nt(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c);

/// c[m, n] = alpha a[m, k] b[k, n] + beta c
template <class Real>
void multiply_nn(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c);

/// c[m, n] = alpha a[k, m]^T b[k, n] + beta c
template <class Real>
void multiply_tn(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c);

/// The library that computes them, and on how many threads.
std::string products_name();

}  // namespace shardloss::detail::cpu
