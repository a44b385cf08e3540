// The gradient of a chunk's logits, U [C, columns] in place or from kept logits:
//
//   du_v = (p_v (A + G (z_v - M)) + B [v == y] + C_v) (1 - (z_v / cap)^2)
//   p_v = exp(z_v - M - log_sum)     C_v = C, C c_v or C c_v q'_v
//
// with A, G, B, C of the row, divided here by the chunk's power of two, and the sums of its
// columns, which are the gradient of the bias. Bytes: C columns elements read and as many written.
// No element needs another, so a block takes a piece of a row; or, where rows share class weights
// or are summed, the same columns of many rows. Each thread has some vectors in flight before it
// uses the first. Rows whose coefficients are all 0 become exact zeros whatever their logits. A
// logit of -inf has gradient 0. Padding up to a multiple of 8 columns becomes 0: products may touch
// it.
//
// Rows go backwards: the statistics read the last ones last, so those are still in the cache, and
// the products that follow begin with the rows written last.
#include <algorithm>

#include "row_gradient.cuh"

namespace shardloss::detail::cuda {
namespace {

constexpr int threads = 256;

// The weights of `count` columns of a row from `column`, where the features have such: those of the
// classes are the same for all rows.
template <unsigned features, int count>
__device__ void load_weights(const DlogitsArguments& d, std::int64_t soft_row, int column,
                             float (&w)[count]) {
  if constexpr ((features & with_classes) != 0) load_floats(d.on.class_weights + column, w);
  if constexpr ((features & with_soft) != 0) load_soft(d.on, soft_row, column, w);
}

// One column at the end of a row, which no vector reaches, or of its padding. Returns the gradient.
template <class T, unsigned features>
__device__ float last_column(const DlogitsArguments& d, const LogitScale& scale, const RowTerms& t,
                             std::int64_t row, int column) {
  auto* out = static_cast<T*>(d.out.data) + row * d.out.row_stride + column;
  if (column >= d.on.objective.columns) {
    *out = T{};
    return 0.0f;
  }
  const auto* in = static_cast<const T*>(d.on.logits.data) + row * d.on.logits.row_stride + column;
  float u[1] = {to_float(*in)};
  float w[1] = {};
  load_weights<features>(d, t.row, column, w);
  gradient<T, features>(u, w, t, scale, column);
  *out = from_float<T>(u[0]);
  return u[0];
}

// A piece of a row: `vectors` vectors, `threads` apart.
template <class T, unsigned features, int vectors>
__global__ void __launch_bounds__(threads)
    row_kernel(DlogitsArguments d, LogitScale scale, unsigned tiles) {
  constexpr int width = lanes<T>;
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const std::int64_t row = block / tiles;
  const unsigned tile = block % tiles;
  const int columns = static_cast<int>(d.on.objective.columns);
  const unsigned whole = static_cast<unsigned>(columns / width);
  const unsigned first = tile * (threads * vectors) + threadIdx.x;
  const auto* in = static_cast<const T*>(d.on.logits.data) + row * d.on.logits.row_stride;
  auto* out = static_cast<T*>(d.out.data) + row * d.out.row_stride;

  uint4 raw[vectors];
#pragma unroll
  for (int j = 0; j < vectors; ++j)
    if (first + j * threads < whole) raw[j] = load16(in + (first + j * threads) * width);
  const RowTerms t = terms_of(d.coefficients[row], d.scale->inverse);
#pragma unroll
  for (int j = 0; j < vectors; ++j) {
    const unsigned v = first + j * threads;
    if (v >= whole) continue;
    const int column = static_cast<int>(v * width);
    float u[width];
    float w[width] = {};
    unpack<T>(raw[j], u);
    load_weights<features>(d, t.row, column, w);
    gradient<T, features>(u, w, t, scale, column);
    store16(out + column, pack<T>(u));
  }
  const int tail = static_cast<int>(whole * width + threadIdx.x);
  if (tile == tiles - 1 && tail < padded(columns))
    (void)last_column<T, features>(d, scale, t, row, tail);
}

constexpr int rows_at_once = 64;

// A vector of columns a thread, `span` rows: what rows share stays in registers, what columns share
// in shared memory. Column sums of the rows go to d.scratch, a line of columns for each span.
template <class T, unsigned features>
__global__ void __launch_bounds__(threads, 3)
    tile_kernel(DlogitsArguments d, LogitScale scale, unsigned tiles, std::int64_t span) {
  constexpr int width = lanes<T>;
  constexpr int in_flight = 4;
  __shared__ RowTerms terms[rows_at_once];
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const unsigned tile = block % tiles;
  const std::int64_t line = block / tiles;
  const std::int64_t begin = line * span;
  const std::int64_t end = min(begin + span, d.on.rows);
  const int columns = static_cast<int>(d.on.objective.columns);
  const unsigned whole = static_cast<unsigned>(columns / width);
  const unsigned v = tile * threads + threadIdx.x;
  const int column = static_cast<int>(v * width);
  const int tail = static_cast<int>(whole * width + threadIdx.x);
  const bool has_tail = tile == tiles - 1 && tail < padded(columns);
  const auto* const in = static_cast<const T*>(d.on.logits.data) + column;
  auto* const out = static_cast<T*>(d.out.data) + column;

  float w[width] = {};
  if constexpr ((features & with_classes) != 0) {
    if (v < whole) load_floats(d.on.class_weights + column, w);
  }
  float sums[width] = {};
  float tail_sum = 0.0f;
  for (std::int64_t last = end; last > begin; last -= rows_at_once) {
    const std::int64_t first = max(begin, last - rows_at_once);
    const int count = static_cast<int>(last - first);
    uint4 next[in_flight];  // of rows first + r, and those below
    const auto load = [&](int r) {
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        if (v < whole && k <= r) next[k] = load16(in + (first + r - k) * d.on.logits.row_stride);
    };
    load(count - 1);
    __syncthreads();
    if (threadIdx.x < count)
      terms[threadIdx.x] = terms_of(d.coefficients[first + threadIdx.x], d.scale->inverse);
    __syncthreads();
    for (int r = count - 1; v < whole && r >= 0; r -= in_flight) {
      uint4 raw[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k) raw[k] = next[k];
      load(r - in_flight);
#pragma unroll
      for (int k = 0; k < in_flight; ++k) {
        if (k > r) break;
        const RowTerms& t = terms[r - k];
        float u[width];
        unpack<T>(raw[k], u);
        if constexpr ((features & with_soft) != 0) load_soft(d.on, t.row, column, w);
        gradient<T, features>(u, w, t, scale, column);
        store16(out + (first + r - k) * d.out.row_stride, pack<T>(u));
#pragma unroll
        for (int i = 0; i < width; ++i) sums[i] += u[i];
      }
    }
    for (int r = count - 1; has_tail && r >= 0; --r)
      tail_sum += last_column<T, features>(d, scale, terms[r], first + r, tail);
  }
  if (d.bias == nullptr) return;
  float* const share = d.scratch + line * columns;
  if (v < whole) {
#pragma unroll
    for (int i = 0; i < width; ++i) share[column + i] = sums[i];
  }
  if (has_tail && tail < columns) share[tail] = tail_sum;
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
  const RowTerms t = terms_of(d.coefficients[row], d.scale->inverse);
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
      load_weights<features>(d, t.row, column, w);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) {
        float one[1] = {};
        if (i < valid) load_weights<features>(d, t.row, column + i, one);
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

// Over how many lines of blocks the rows of a chunk are spread, each leaving a line of column sums:
// some blocks for every multiprocessor, as far as rows suffice and sums fit.
std::int64_t lines_of(const DlogitsArguments& d, unsigned tiles) {
  const auto groups = [&](std::int64_t rows) { return (d.on.rows + rows - 1) / rows; };
  const std::int64_t enough = (std::int64_t{12} * d.multiprocessors + tiles - 1) / tiles;
  const std::int64_t wanted = std::clamp(enough, groups(rows_at_once), groups(8));
  if (d.bias == nullptr) return wanted;
  const auto fit =
      static_cast<std::int64_t>(d.scratch_bytes / sizeof(float)) / d.on.objective.columns;
  return std::min(wanted, fit);
}

template <class T, unsigned features>
void launch_tiles(const DlogitsArguments& d, unsigned tiles, std::int64_t lines,
                  cudaStream_t stream) {
  const std::int64_t columns = d.on.objective.columns;
  const std::int64_t span = (d.on.rows + lines - 1) / lines;
  lines = (d.on.rows + span - 1) / span;
  tile_kernel<T, features><<<static_cast<unsigned>(lines * tiles), threads, 0, stream>>>(
      d, scale_of(d.on.objective), tiles, span);
  SHARDLOSS_LAUNCHED("tile_kernel");
  if (d.bias != nullptr)
    add_column_shares(d.scratch, lines, columns, d.scale, d.first, d.bias, stream);
}

template <class T, unsigned features, int vectors>
void launch_rows(const DlogitsArguments& d, cudaStream_t stream) {
  const unsigned tiles = blocks_for(d.on.objective.columns / lanes<T>, threads * vectors);
  row_kernel<T, features, vectors>
      <<<static_cast<unsigned>(d.on.rows * tiles), threads, 0, stream>>>(
          d, scale_of(d.on.objective), tiles);
  SHARDLOSS_LAUNCHED("row_kernel");
}

template <class Out, unsigned features>
void launch_narrow(const DlogitsArguments& d, cudaStream_t stream) {
  narrow_kernel<Out, features>
      <<<static_cast<unsigned>(d.on.rows), threads, 0, stream>>>(d, scale_of(d.on.objective));
  SHARDLOSS_LAUNCHED("narrow_kernel");
}

// Which kernel, for features known; sums of columns by another one where it does not make them.
template <class T, unsigned features>
void launch(const DlogitsArguments& d, cudaStream_t stream) {
  bool narrow = false;
  if constexpr (!std::is_same_v<T, float>) narrow = d.on.logits.dtype == DType::float32;
  const unsigned tiles = blocks_for(d.on.objective.columns / lanes<T>, threads);
  const std::int64_t lines = lines_of(d, tiles);
  const bool by_tiles = (features & with_classes) != 0 || d.bias != nullptr;
  if (!narrow && by_tiles && lines > 0) return launch_tiles<T, features>(d, tiles, lines, stream);
  if constexpr (!std::is_same_v<T, float>) {
    if (narrow) launch_narrow<T, features>(d, stream);
  }
  if (!narrow) launch_rows<T, features, (features & with_soft) != 0 ? 2 : 4>(d, stream);
  if (d.bias != nullptr)
    sum_columns({d.out.data, d.out.dtype, d.out.row_stride}, d.on.rows, d.on.objective.columns,
                d.scale, d.first, d.bias, stream);
}

// Which features: the fewest that do what is asked for. (A kernel for G = C = 0 alone takes as long
// or 1 to 3 % longer: memory is what they wait for.) T: of the gradients.
template <class T>
void choose(const DlogitsArguments& d, cudaStream_t stream) {
  const auto run = [&]<unsigned features>(std::integral_constant<unsigned, features>) {
    with_or_without_cap<features>(
        d.on.objective,
        [&]<unsigned all>(std::integral_constant<unsigned, all>) { launch<T, all>(d, stream); });
  };
  if (d.on.soft_targets.data != nullptr)
    run(std::integral_constant<unsigned, with_soft>{});
  else if (d.on.class_weights != nullptr)
    run(std::integral_constant<unsigned, with_classes>{});
  else
    run(std::integral_constant<unsigned, 0>{});
}

}  // namespace

void dlogits(const DlogitsArguments& arguments, cudaStream_t stream) {
  if (arguments.on.rows == 0 || arguments.on.objective.columns == 0) return;
  with_element(arguments.out.dtype, [&]<class T>(ElementType<T>) { choose<T>(arguments, stream); });
}

}  // namespace shardloss::detail::cuda
