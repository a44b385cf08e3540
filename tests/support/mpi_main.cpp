// GoogleTest on every rank of an MPI job. Failures of all ranks reach rank 0's report with their
// rank; a rank whose test fails early waits for the others at the test's end, so that the ranks
// never run different tests.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::string failures(const testing::TestResult& result) {
  std::string text;
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (!part.failed()) continue;
    text += std::string(part.file_name() != nullptr ? part.file_name() : "(no file)") + ":" +
            std::to_string(part.line_number()) + ": " + part.message() + "\n";
  }
  return text;
}

/// At the end of each test: every rank's failures become failures of rank 0, and a failure anywhere
/// fails the test on all ranks.
class Gather : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& info) override {
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const std::string mine = failures(*info.result());
    const int length = static_cast<int>(mine.size());
    std::vector<int> lengths(static_cast<std::size_t>(size));
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::vector<int> starts(lengths.size(), 0);
    for (std::size_t r = 1; r < starts.size(); ++r) starts[r] = starts[r - 1] + lengths[r - 1];
    std::string all(static_cast<std::size_t>(starts.back() + lengths.back()), '\0');
    MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(),
                   MPI_CHAR, MPI_COMM_WORLD);
    for (int r = 0; r < size; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r == rank || lengths[at] == 0) continue;
      ADD_FAILURE() << "on rank " << r << ":\n"
                    << all.substr(static_cast<std::size_t>(starts[at]),
                                  static_cast<std::size_t>(lengths[at]));
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Gather);
  const int status = RUN_ALL_TESTS();
  std::fflush(stdout);
  if (status != 0) {
    // A failed test can leave an operation behind that MPI_Finalize would wait for.
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  MPI_Finalize();
  return status;
}
