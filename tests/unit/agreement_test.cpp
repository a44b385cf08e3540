#include "agreement.hpp"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "sample.hpp"

namespace shardloss::detail {
namespace {

/// Ranks as threads of this process, which can do what a handshake needs: exchange_host.
class Table {
 public:
  explicit Table(int ranks) : ranks_(ranks), barrier_(ranks) {}

  class Seat : public Transport {
   public:
    Seat(Table& table, int rank)
        : Transport(rank, table.ranks_, std::chrono::seconds(10)), table_(table) {}
    bool serves(DeviceKind) const noexcept override { return true; }
    std::string_view kind() const noexcept override { return "threads"; }
    void exchange_host(const void* mine, void* all, std::size_t bytes) override {
      if (rank() == 0) table_.gathered_.resize(bytes * static_cast<std::size_t>(size()));
      table_.barrier_.arrive_and_wait();
      std::memcpy(table_.gathered_.data() + bytes * static_cast<std::size_t>(rank()), mine, bytes);
      table_.barrier_.arrive_and_wait();
      std::memcpy(all, table_.gathered_.data(), table_.gathered_.size());
      table_.barrier_.arrive_and_wait();
    }
    Ticket all_gather(void*, std::span<const std::int64_t>, Stream) override { return no(); }
    Ticket all_reduce(void*, std::int64_t, DType, Stream) override { return no(); }
    Ticket reduce_scatter(void*, std::span<const std::int64_t>, DType, Stream) override {
      return no();
    }
    void wait(Ticket, Stream) override { no(); }

   private:
    static Ticket no() { throw std::logic_error("a handshake is one exchange on the host"); }
    Table& table_;
  };

 private:
  int ranks_;
  std::barrier<> barrier_;
  std::vector<char> gathered_;
};

/// What each of three ranks ends in: the text of its error, or "".
std::vector<std::string> shake(
    const std::function<void(int, Problem&, std::optional<Error>&)>& bend,
    const char* other_object = "loss") {
  constexpr int ranks = 3;
  Table table(ranks);
  std::vector<std::string> ends(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Table::Seat seat(table, rank);
      Problem problem = test::plain_problem(8, 4, 100);
      std::optional<Error> verdict;
      bend(rank, problem, verdict);
      try {
        EXPECT_EQ(handshake(seat, rank == 1 ? other_object : "loss", problem, {}, verdict,
                            100 + static_cast<std::uint64_t>(rank)),
                  100u)
            << "rank 0's number";
      } catch (const Error& error) {
        ends[static_cast<std::size_t>(rank)] = error.what();
        EXPECT_FALSE(error.fatal());
      }
    });
  }
  threads.clear();  // joins
  return ends;
}

void expect_all(const std::vector<std::string>& ends,
                std::initializer_list<std::string_view> parts) {
  for (const std::string& end : ends) {
    EXPECT_EQ(end, ends.front());
    for (const std::string_view part : parts)
      EXPECT_NE(end.find(part), std::string::npos) << part << " is not in: " << end;
  }
}

TEST(Handshake, EqualProblemsPass) {
  expect_all(shake([](int, Problem&, std::optional<Error>&) {}), {});
  for (const std::string& end : shake([](int, Problem&, std::optional<Error>&) {}))
    EXPECT_EQ(end, "");
}

TEST(Handshake, AFieldThatDiffersIsNamedWithValuesAndRanksOnAll) {
  const auto differs = [](const std::function<void(Problem&)>& bend) {
    return shake([&](int rank, Problem& p, std::optional<Error>&) {
      if (rank == 2) bend(p);
    });
  };
  expect_all(differs([](Problem& p) { p.vocab = 101; }),
             {"mismatch", "vocab", "rank 2 has 101", "rank 0 has 100"});
  expect_all(differs([](Problem& p) { p.max_rows = 9; }), {"max_rows", "9", "8"});
  expect_all(differs([](Problem& p) { p.hidden = 5; }), {"hidden", "5", "4"});
  expect_all(differs([](Problem& p) { p.vocab_padded = 128; }), {"vocab_padded", "128"});
  expect_all(differs([](Problem& p) { p.dtype = DType::float16; }), {"dtype"});
  expect_all(differs([](Problem& p) { p.layout = Layout::row_sharded; }), {"layout"});
  expect_all(differs([](Problem& p) { p.bias = true; }), {"bias"});
  expect_all(differs([](Problem& p) { p.row_index = true; }), {"row_index"});
  expect_all(differs([](Problem& p) { p.reduction = Reduction::sum; }), {"reduction"});
  expect_all(differs([](Problem& p) { p.ignore_index = -1; }), {"ignore_index", "-1", "-100"});
  expect_all(differs([](Problem& p) { p.normalizer = true; }), {"normalizer"});
  expect_all(differs([](Problem& p) { p.logit_scale = 0.5; }), {"logit_scale", "0.5"});
  expect_all(differs([](Problem& p) { p.softcap = 30; }), {"softcap", "30"});
  expect_all(differs([](Problem& p) { p.label_smoothing = 0.25; }), {"label_smoothing", "0.25"});
  expect_all(differs([](Problem& p) { p.label_smoothing_form = SmoothingForm::megatron; }),
             {"label_smoothing_form"});
  expect_all(differs([](Problem& p) { p.z_loss = 0.5; }), {"z_loss", "0.5"});
  expect_all(differs([](Problem& p) { p.class_weights = true; }), {"class_weights"});
  expect_all(differs([](Problem& p) { p.soft_targets = true; }), {"soft_targets"});
  expect_all(differs([](Problem& p) { p.entropy = true; }), {"entropy"});
  expect_all(differs([](Problem& p) { p.grad_hidden = GradDType::none; }), {"grad_hidden"});
  expect_all(differs([](Problem& p) { p.chunking = {Chunking::Rule::rows, 4}; }), {"chunking"});
  expect_all(differs([](Problem& p) { p.accumulation = Accumulation::compact; }), {"accumulation"});
  expect_all(differs([](Problem& p) { p.keep_logits = 3; }), {"keep_logits", "3"});
  expect_all(differs([](Problem& p) { p.shard_widths = {50, 30, 20}; }), {"shard_widths"});
}

TEST(Handshake, AWidthThatDiffersIsNamed) {
  expect_all(shake([](int rank, Problem& p, std::optional<Error>&) {
               p.shard_widths = {50, 30, 20};
               if (rank == 1) p.shard_widths = {50, 31, 19};
             }),
             {"mismatch", "shard_widths[1]", "rank 1 has 31", "rank 0 has 30"});
}

TEST(Handshake, OneRanksVerdictReachesAll) {
  expect_all(shake([](int rank, Problem&, std::optional<Error>& verdict) {
               if (rank == 1) verdict = Error(ErrorCode::out_of_memory, "12 GiB for logits");
             }),
             {"out_of_memory", "rank 1", "12 GiB for logits"});
}

TEST(Handshake, AFrozenShardIsARanksOwnAffair) {
  for (const std::string& end : shake([](int rank, Problem&p, std::optional<Error>&) {
         if (rank == 1) p.grad_weight = GradDType::none;
       }))
    EXPECT_EQ(end, "");
}

TEST(Handshake, DifferentObjectsDoNotPass) {
  expect_all(shake([](int, Problem&, std::optional<Error>&) {}, "embedding"), {"mismatch"});
}

std::vector<CallHeader> equal_headers() {
  CallHeader header{};
  header.call = 7;
  header.operation = static_cast<std::uint64_t>(Operation::forward);
  header.rows = 64;
  header.outputs = 3;
  header.targets = 0xabcdef;
  return {header, header, header};
}

TEST(CallHeaders, EqualOnesAgreeWhateverTheirOwnShares) {
  std::vector<CallHeader> headers = equal_headers();
  headers[1].denominator = 5;
  headers[2].counted = 3;
  headers[2].invalid = 1;
  EXPECT_FALSE(disagreement(headers).has_value());
  EXPECT_FALSE(disagreement(std::span(headers).first(1)).has_value());
}

TEST(CallHeaders, ADisagreementIsNamedWithValuesAndRanks) {
  std::vector<CallHeader> headers = equal_headers();
  headers[2].rows = 63;
  const std::optional<Error> error = disagreement(headers);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::mismatch);
  EXPECT_TRUE(error->fatal());
  for (const char* part : {"rows", "rank 2", "63", "64"})
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
}

TEST(CallHeaders, EveryAgreedWordIsComparedAndNamed) {
  for (std::uint32_t word = 1; word < agreed_words; ++word) {
    std::vector<CallHeader> headers = equal_headers();
    std::array<std::uint64_t, agreed_words> words{};
    std::memcpy(words.data(), &headers[1], sizeof words);
    words.at(word) += 1;
    std::memcpy(&headers[1], words.data(), sizeof words);
    const std::optional<Error> error = disagreement(headers);
    ASSERT_TRUE(error.has_value()) << agreed_names.at(word);
    EXPECT_NE(std::string(error->what()).find(agreed_names.at(word)), std::string::npos)
        << error->what();
    EXPECT_EQ(error->fatal(), word + 1 != agreed_words) << error->what();
  }
}

TEST(CallHeaders, AListOfRowsIsNotToldAsANumberOfThem) {
  std::vector<CallHeader> headers = equal_headers();
  for (CallHeader& header : headers) header.rows = hashed_rows | 0x1234;
  headers[1].rows = hashed_rows | 0x99;
  const std::optional<Error> error = disagreement(headers);
  ASSERT_TRUE(error.has_value());
  EXPECT_TRUE(error->fatal());
  for (const char* part :
       {"rows_per_rank, as a hash", "rank 1", "8000000000001234", "8000000000000099"})
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
}

TEST(CallHeaders, TargetsAloneAreRecoverable) {
  std::vector<CallHeader> headers = equal_headers();
  headers[1].targets = 1;
  const std::optional<Error> error = disagreement(headers);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::mismatch);
  EXPECT_FALSE(error->fatal());
}

TEST(CallHeaders, ARefusedCallIsRecoverableAndNamesTheRank) {
  std::vector<CallHeader> headers = equal_headers();
  headers[1].verdict = 1;
  const std::optional<Error> error = disagreement(headers);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(error->fatal());
  EXPECT_NE(std::string(error->what()).find("rank 1"), std::string::npos) << error->what();
}

}  // namespace
}  // namespace shardloss::detail
