#include "world.hpp"

#include <vector>

namespace language_model {

World::Part World::part_of(Share sequences) const {
  const Share replica = share(sequences.count, data.size(), data.rank());
  const std::int64_t first = sequences.first + replica.first;
  if (!row_sharded) return {{first, replica.count}, {}};
  Part part;
  for (int r = 0; r < tensor.size(); ++r)
    part.of_rank.push_back(share(replica.count, tensor.size(), r).count);
  part.mine = share(replica.count, tensor.size(), tensor.rank());
  part.mine.first += first;
  return part;
}

namespace {

template <class T>
void sum_values(const shardloss::Communicator& group, std::span<T> values) {
  if (group.size() == 1 || values.empty()) return;
  shardloss::Transport& transport = group.transport();
  transport.wait(transport.all_reduce(values.data(), static_cast<std::int64_t>(values.size()),
                                      shardloss::dtype_of<T>(), {}),
                 {});
}

}  // namespace

void sum_over(const shardloss::Communicator& group, std::span<float> values) {
  sum_values(group, values);
}

void sum_over(const shardloss::Communicator& group, std::span<double> values) {
  sum_values(group, values);
}

void barrier(const shardloss::Communicator& group) { from_first(group, 0); }

double from_first(const shardloss::Communicator& group, double value) {
  if (group.size() == 1) return value;
  std::vector<double> all(static_cast<std::size_t>(group.size()));
  group.transport().exchange_host(&value, all.data(), sizeof value);
  return all.front();
}

}  // namespace language_model
