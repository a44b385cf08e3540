/// \file
/// Row-major matrix products through BLAS.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace language_model {

enum class Form { plain, transposed };

/// c [m, n] = op(a) [m, k] op(b) [k, n] + beta c; all matrices dense.
inline void multiply(Form form_a, Form form_b, std::int64_t m, std::int64_t n, std::int64_t k,
                     const float* a, const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  const auto blas = [](Form form) { return form == Form::plain ? CblasNoTrans : CblasTrans; };
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, blas(form_a), blas(form_b), size(m), size(n), size(k), 1.0F, a,
              size(form_a == Form::plain ? k : m), b, size(form_b == Form::plain ? n : k), beta, c,
              size(n));
}

}  // namespace language_model
