// The gradient of a chunk's logits, U [C, columns] in place or from kept logits:
//
//   du_v = (p_v (A + G (z_v - M)) + B [v == y] + C_v) s (1 - (z_v / cap)^2)
//   p_v = exp(z_v - M - log_sum)     C_v = C, C c_v or C c_v q'_v
//
// with A, G, B, C of the row, divided here by the chunk's power of two. Bytes: C columns elements
// read and as many written. No element needs another, so a block takes a piece of a row, or of four
// rows where they share class weights; each thread has its vectors in flight before it uses the
// first. Rows whose coefficients are all 0 become exact zeros whatever their logits. A logit of
// -inf has gradient 0. Padding up to a multiple of 8 columns becomes 0: products may touch it.
//
// Rows go backwards: the statistics read the last ones last, so those are still in the cache, and
// the products that follow begin with the rows written last.
#include "logits.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

__device__ int padded(int columns) { return (columns + 7) / 8 * 8; }

// A row's coefficients ready for use: scaled by s, and p_v = 2^(z log2 e - offset).
struct RowTerms {
  float offset;
  float max;
  float a, g, b, c;
  int column;
  bool zero;
};

// `scale`: s over the chunk's power of two.
__device__ RowTerms terms_of(const RowCoefficients<float>& row, float scale) {
  RowTerms t;
  // M log2 e + log_sum log2 e, and what its roundings lost, so that the p of a row add up to 1.
  const float m = row.max * log2_e;
  const float l = row.log_sum * log2_e;
  t.offset = m + l;
  const float l_part = t.offset - m;
  const float lost = (m - (t.offset - l_part)) + (l - l_part) + fmaf(row.max, log2_e, -m);
  const float correction = exp2_fast(-lost);
  t.max = row.max;
  t.a = row.a * scale * correction;
  t.g = row.g * scale * correction;
  t.b = row.b * scale;
  t.c = row.c * scale;
  t.column = static_cast<int>(row.column);
  t.zero = row.a == 0.0f && row.g == 0.0f && row.b == 0.0f && row.c == 0.0f;
  return t;
}

template <class T, unsigned features, int count>
__device__ void gradient(float (&u)[count], const float (&w)[count], const RowTerms& t,
                         const LogitScale& scale, int column) {
  if (t.zero) {
#pragma unroll
    for (int i = 0; i < count; ++i) u[i] = 0.0f;
    return;
  }
  float du[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float slope;
    const float z = logit<T, (features & with_cap) != 0>(u[i], scale, slope);
    const float e = exp2_fast(fmaf(z, log2_e, -t.offset));
    if constexpr ((features & (with_sums | with_soft)) != 0) {
      const float c = (features & (with_classes | with_soft)) != 0 ? t.c * w[i] : t.c;
      du[i] = fmaf(e, fmaf(t.g, fmaxf(z - t.max, lowest), t.a), c);
      if (z == -infinity()) du[i] = 0.0f;
    } else {
      du[i] = e * t.a;
    }
    du[i] *= slope;
  }
  // One thread of the row has the target among its columns.
  const unsigned target = static_cast<unsigned>(t.column - column);
  if (t.column >= 0 && target < count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float slope;
      const float z = logit<T, (features & with_cap) != 0>(u[i], scale, slope);
      if (i == target && z != -infinity()) du[i] = fmaf(t.b, slope, du[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) u[i] = du[i];
}

// `vectors` vectors, `threads` apart, of each row from the vector numbered `first`.
template <class T, unsigned features, int row_count, int vectors>
__global__ void __launch_bounds__(threads)
    dlogits_kernel(DlogitsArguments d, LogitScale scale, unsigned tiles) {
  constexpr int width = lanes<T>;
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const std::int64_t first_row = static_cast<std::int64_t>(block / tiles) * row_count;
  const unsigned tile = block % tiles;
  const int columns = static_cast<int>(d.on.objective.columns);
  const unsigned whole = static_cast<unsigned>(columns / width);
  const unsigned first = tile * (threads * vectors) + threadIdx.x;
  const auto* in = static_cast<const T*>(d.on.logits.data);
  auto* out = static_cast<T*>(d.out.data);

  uint4 raw[row_count][vectors];
#pragma unroll
  for (int r = 0; r < row_count; ++r)
#pragma unroll
    for (int j = 0; j < vectors; ++j) {
      const unsigned v = first + j * threads;
      if (first_row + r < d.on.rows && v < whole)
        raw[r][j] = load16(in + (first_row + r) * d.on.logits.row_stride + v * width);
    }

  float w[vectors][width] = {};
  if constexpr ((features & with_classes) != 0) {
#pragma unroll
    for (int j = 0; j < vectors; ++j)
      if (first + j * threads < whole)
        load_floats(d.on.class_weights + (first + j * threads) * width, w[j]);
  }
  const float row_scale = scale.scale * d.scale->inverse;
  const int tail = static_cast<int>(whole * width + threadIdx.x);
  const bool has_tail = tile == tiles - 1 && tail < padded(columns);
#pragma unroll
  for (int r = 0; r < row_count; ++r) {
    const std::int64_t row = first_row + r;
    if (row >= d.on.rows) break;
    const RowTerms t = terms_of(d.coefficients[row], row_scale);
    [[maybe_unused]] const std::int64_t soft_row = d.coefficients[row].row;
#pragma unroll
    for (int j = 0; j < vectors; ++j) {
      const unsigned v = first + j * threads;
      if (v >= whole) continue;
      float u[width];
      unpack<T>(raw[r][j], u);
      const int column = static_cast<int>(v * width);
      if constexpr ((features & with_soft) != 0) load_soft(d.on, soft_row, column, w[j]);
      gradient<T, features>(u, w[j], t, scale, column);
      store16(out + row * d.out.row_stride + column, pack<T>(u));
    }
    if (!has_tail) continue;
    if (tail >= columns) {
      out[row * d.out.row_stride + tail] = T{};
      continue;
    }
    float u[1] = {to_float(in[row * d.on.logits.row_stride + tail])};
    float one[1] = {};
    if constexpr ((features & with_classes) != 0) one[0] = d.on.class_weights[tail];
    if constexpr ((features & with_soft) != 0) load_soft(d.on, soft_row, tail, one);
    gradient<T, features>(u, one, t, scale, tail);
    out[row * d.out.row_stride + tail] = from_float<T>(u[0]);
  }
}

// float32 logits, 16-bit gradients (accumulation accurate): a row's gradients go to the beginning
// of its own logits, so one block walks a row, and its threads have all read before any writes.
template <class Out, unsigned features>
__global__ void __launch_bounds__(threads) narrow_kernel(DlogitsArguments d, LogitScale scale) {
  constexpr int width = lanes<Out>;
  const std::int64_t row = gridDim.x - 1 - blockIdx.x;
  const int columns = static_cast<int>(d.on.objective.columns);
  const auto* in = static_cast<const float*>(d.on.logits.data) + row * d.on.logits.row_stride;
  auto* out = static_cast<Out*>(d.out.data) + row * d.out.row_stride;
  const RowTerms t = terms_of(d.coefficients[row], scale.scale * d.scale->inverse);
  [[maybe_unused]] const std::int64_t soft_row = d.coefficients[row].row;
  const unsigned pieces = (static_cast<unsigned>(columns) + width - 1) / width;
  for (unsigned first = 0; first < pieces; first += threads) {
    const unsigned piece = first + threadIdx.x;
    const int column = static_cast<int>(piece * width);
    const int valid = piece < pieces ? min(width, columns - column) : 0;
    float u[width];
    float w[width] = {};
    if (valid == width) {
#pragma unroll
      for (int k = 0; k < width / 4; ++k)  // not load_floats: this kernel writes what it reads
        unpack<float>(load16(in + column + 4 * k), reinterpret_cast<float(&)[4]>(u[4 * k]));
      if constexpr ((features & with_classes) != 0) load_floats(d.on.class_weights + column, w);
      if constexpr ((features & with_soft) != 0) load_soft(d.on, soft_row, column, w);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) {
        float one[1] = {};
        if (i < valid) {
          if constexpr ((features & with_classes) != 0) one[0] = d.on.class_weights[column + i];
          if constexpr ((features & with_soft) != 0) load_soft(d.on, soft_row, column + i, one);
        }
        u[i] = i < valid ? in[column + i] : 0.0f;
        w[i] = one[0];
      }
    }
    __syncthreads();
    if (valid == 0) continue;
    gradient<float, features>(u, w, t, scale, column);
#pragma unroll
    for (int i = 0; i < width; ++i)
      if (i >= valid) u[i] = 0.0f;
    store16(out + column, pack<Out>(u));
  }
}

template <class T, unsigned features, int row_count, int vectors>
void launch(const DlogitsArguments& d, cudaStream_t stream) {
  const unsigned tiles = blocks_for(d.on.objective.columns / lanes<T>, threads * vectors);
  const std::int64_t groups = (d.on.rows + row_count - 1) / row_count;
  dlogits_kernel<T, features, row_count, vectors>
      <<<static_cast<unsigned>(groups * tiles), threads, 0, stream>>>(d, scale_of(d.on.objective),
                                                                      tiles);
  SHARDLOSS_LAUNCHED("dlogits_kernel");
}

template <class Out, unsigned features>
void launch_narrow(const DlogitsArguments& d, cudaStream_t stream) {
  narrow_kernel<Out, features>
      <<<static_cast<unsigned>(d.on.rows), threads, 0, stream>>>(d, scale_of(d.on.objective));
  SHARDLOSS_LAUNCHED("narrow_kernel");
}

// Which kernel: the plainest that does what is asked for. T: of the gradients.
template <class T>
void choose(const DlogitsArguments& d, cudaStream_t stream) {
  const auto run = [&]<unsigned features, int row_count, int vectors>() {
    with_or_without_cap<features>(d.on.objective,
                                  [&]<unsigned all>(std::integral_constant<unsigned, all>) {
                                    if constexpr (!std::is_same_v<T, float>) {
                                      if (d.on.logits.dtype == DType::float32)
                                        return launch_narrow<T, all>(d, stream);
                                    }
                                    launch<T, all, row_count, vectors>(d, stream);
                                  });
  };
  if (d.on.soft_targets.data != nullptr)
    run.template operator()<with_soft, 1, 2>();
  else if (d.on.class_weights != nullptr)
    run.template operator()<with_sums | with_classes, 4, 1>();
  else if (d.on.general)
    run.template operator()<with_sums, 1, 4>();
  else
    run.template operator()<0, 1, 4>();
}

}  // namespace

void dlogits(const DlogitsArguments& arguments, cudaStream_t stream) {
  if (arguments.on.rows == 0 || arguments.on.objective.columns == 0) return;
  with_element(arguments.out.dtype, [&]<class T>(ElementType<T>) { choose<T>(arguments, stream); });
}

}  // namespace shardloss::detail::cuda
