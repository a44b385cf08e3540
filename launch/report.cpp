#include "report.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "replaced_file.hpp"
#include "shardloss/error.hpp"

namespace shardloss::launch {

Json to_json(const Problem& p) {
  return {{"max_rows", p.max_rows},
          {"hidden", p.hidden},
          {"vocab", p.vocab},
          {"vocab_padded", p.vocab_padded},
          {"dtype", name(p.dtype)},
          {"layout", name(p.layout)},
          {"reduction", name(p.reduction)},
          {"ignore_index", p.ignore_index},
          {"logit_scale", p.logit_scale},
          {"softcap", p.softcap},
          {"label_smoothing", p.label_smoothing},
          {"label_smoothing_form", name(p.label_smoothing_form)},
          {"z_loss", p.z_loss},
          {"bias", p.bias},
          {"class_weights", p.class_weights},
          {"soft_targets", p.soft_targets},
          {"normalizer", p.normalizer},
          {"entropy", p.entropy},
          {"grad_hidden", name(p.grad_hidden)},
          {"grad_weight", name(p.grad_weight)},
          {"accumulation", name(p.accumulation)}};
}

Json to_json(const Plan& plan) {
  Json buffers = Json::array(), gemms = Json::array(), collectives = Json::array();
  for (const PlannedBuffer& b : plan.buffers)
    buffers.push_back({{"name", b.name}, {"offset", b.offset}, {"bytes", b.bytes}});
  for (const PlannedGemm& g : plan.gemms)
    gemms.push_back(
        {{"name", g.name}, {"m", g.m}, {"n", g.n}, {"k", g.k}, {"algorithm", g.algorithm}});
  for (const PlannedCollective& c : plan.collectives)
    collectives.push_back({{"way", c.way},
                           {"name", c.name},
                           {"kind", c.kind},
                           {"formula", c.formula},
                           {"calls", c.calls},
                           {"bytes", c.bytes}});
  return {{"device", name(plan.device)},
          {"rank", plan.rank},
          {"ranks", plan.ranks},
          {"shard",
           {{"first", plan.shard.first}, {"width", plan.shard.width}, {"vocab", plan.shard.vocab}}},
          {"widest", plan.widest},
          {"chunk_rows", plan.chunk_rows},
          {"chunks", plan.chunks},
          {"slots", plan.slots},
          {"logits_dtype", name(plan.logits_dtype)},
          {"grad_hidden_partial_dtype", name(plan.grad_hidden_partial_dtype)},
          {"kept_rows", plan.kept_rows},
          {"workspace_bytes", plan.workspace_bytes},
          {"saved_bytes", plan.saved_bytes},
          {"forward_backward_flops", plan.forward_backward_flops},
          {"forward_flops", plan.forward_flops},
          {"backward_flops", plan.backward_flops},
          {"buffers", buffers},
          {"gemms", gemms},
          {"collectives", collectives}};
}

std::vector<RankFigures> exchange(const Communicator& host, const RankFigures& mine) {
  std::vector<RankFigures> all(static_cast<std::size_t>(host.size()));
  host.transport().exchange_host(&mine, all.data(), sizeof mine);
  return all;
}

Json to_json(const std::vector<RankFigures>& ranks) {
  RankFigures most;
  std::int64_t bytes = 0;
  Json each = Json::array();
  for (const RankFigures& r : ranks) {
    most.seconds = std::max(most.seconds, r.seconds);
    most.workspace_bytes = std::max(most.workspace_bytes, r.workspace_bytes);
    most.collective_calls = std::max(most.collective_calls, r.collective_calls);
    bytes += r.collective_bytes;
    each.push_back({{"seconds", r.seconds},
                    {"workspace_bytes", r.workspace_bytes},
                    {"resident_bytes", r.resident_bytes},
                    {"collective_calls", r.collective_calls},
                    {"collective_bytes", r.collective_bytes}});
  }
  return {{"seconds", most.seconds},
          {"peak_workspace_bytes", most.workspace_bytes},
          {"collective_calls", most.collective_calls},
          {"collective_bytes", bytes},
          {"ranks", each}};
}

std::int64_t peak_resident_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

namespace {

[[noreturn]] void refuse_path(const std::string& path, const std::string& temporary) {
  (void)std::remove(temporary.c_str());
  throw Error(ErrorCode::invalid_argument, path + ": cannot be written, wanted a file to write");
}

}  // namespace

void check_writable(const std::string& path) {
  const std::string temporary = files::temporary_of(files::behind_links(path));
  const int fd = files::create_temporary(temporary);
  if (fd < 0) refuse_path(path, temporary);
  ::close(fd);
  (void)std::remove(temporary.c_str());
}

void write_text(const std::string& path, const std::string& text) {
  const std::string target = files::behind_links(path), temporary = files::temporary_of(target);
  const int fd = files::create_temporary(temporary);
  std::FILE* const file = fd < 0 ? nullptr : ::fdopen(fd, "w");
  if (file == nullptr) refuse_path(path, temporary);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), target.c_str()) != 0)
    refuse_path(path, temporary);
}

}  // namespace shardloss::launch
