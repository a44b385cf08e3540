// Matrix products through CBLAS.
#include "products.hpp"

#include <cblas.h>

#include <limits>
#include <type_traits>

#include "shardloss/error.hpp"

namespace shardloss::detail::cpu {
namespace {

int blas_int(std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::internal,
                "a size or row stride of " + std::to_string(value) + "; BLAS takes 2^31 - 1");
  }
  return static_cast<int>(value);
}

template <class Real>
void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n,
              std::int64_t k, Real alpha, Matrix<const Real> a, Matrix<const Real> b, Real beta,
              Matrix<Real> c) {
  if constexpr (std::is_same_v<Real, double>) {
    cblas_dgemm(CblasRowMajor, ta, tb, blas_int(m), blas_int(n), blas_int(k), alpha, a.data,
                blas_int(a.ld), b.data, blas_int(b.ld), beta, c.data, blas_int(c.ld));
  } else {
    cblas_sgemm(CblasRowMajor, ta, tb, blas_int(m), blas_int(n), blas_int(k), alpha, a.data,
                blas_int(a.ld), b.data, blas_int(b.ld), beta, c.data, blas_int(c.ld));
  }
}

}  // namespace

template <class Real>
void multiply_nt(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c) {
  multiply(CblasNoTrans, CblasTrans, m, n, k, alpha, a, b, beta, c);
}

template <class Real>
void multiply_nn(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c) {
  multiply(CblasNoTrans, CblasNoTrans, m, n, k, alpha, a, b, beta, c);
}

template <class Real>
void multiply_tn(std::int64_t m, std::int64_t n, std::int64_t k, Real alpha, Matrix<const Real> a,
                 Matrix<const Real> b, Real beta, Matrix<Real> c) {
  multiply(CblasTrans, CblasNoTrans, m, n, k, alpha, a, b, beta, c);
}

#define SHARDLOSS_INSTANTIATE(product, Real)                                                      \
  template void product<Real>(std::int64_t, std::int64_t, std::int64_t, Real, Matrix<const Real>, \
                              Matrix<const Real>, Real, Matrix<Real>);
SHARDLOSS_INSTANTIATE(multiply_nt, float)
SHARDLOSS_INSTANTIATE(multiply_nn, float)
SHARDLOSS_INSTANTIATE(multiply_tn, float)
SHARDLOSS_INSTANTIATE(multiply_nt, double)
SHARDLOSS_INSTANTIATE(multiply_nn, double)
SHARDLOSS_INSTANTIATE(multiply_tn, double)
#undef SHARDLOSS_INSTANTIATE

std::string products_name() {
#ifdef OPENBLAS_VERSION
  return std::string("OpenBLAS ") + openblas_get_corename() + ", " +
         std::to_string(openblas_get_num_threads()) + " threads";
#else
  return "CBLAS";
#endif
}

}  // namespace shardloss::detail::cpu
