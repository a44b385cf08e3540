#include "two_processes.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace shardloss::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds exit_bound{5};

bool send_all(int socket, const void* data, std::size_t bytes) {
  return send(socket, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool receive_all(int socket, void* data, std::size_t bytes) {
  return recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

// Ends as programs do, destructors of static objects included: hanging there counts too.
[[noreturn]] void live(const Member& member, const std::function<void(const Member&)>& body,
                       int report) {
  try {
    body(member);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << member.rank() << ": " << error.what();
  }
  std::fflush(stdout);
  const char done = 'd';
  (void)!write(report, &done, 1);
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

// A process as its parent follows it.
class Child {
 public:
  Child(int rank, int own, int others, const std::function<void(const Member&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      close(others);
      close(ends[0]);
      live(Member(rank, own), body, ends[1]);
    }
    close(ends[1]);
    report_ = ends[0];
  }
  ~Child() {
    if (!ended_) end();
    close(report_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Whether it has ended, or was ended for taking too long.
  bool look(Clock::time_point body_limit) {
    if (ended_) return true;
    if (waitpid(pid_, &ending_.status, WNOHANG) == pid_) return ended_ = true;
    const Clock::time_point now = Clock::now();
    if (!done_ && body_is_done()) {
      done_ = true;
      exit_limit_ = now + exit_bound;
    }
    if (now <= (done_ ? exit_limit_ : body_limit)) return false;
    (done_ ? ending_.hung_at_exit : ending_.hung_in_body) = true;
    end();
    return true;
  }
  const Ending& ending() const { return ending_; }

 private:
  bool body_is_done() const {
    char byte = 0;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(report_, &set);
    timeval none{};
    return select(report_ + 1, &set, nullptr, nullptr, &none) == 1 && read(report_, &byte, 1) == 1;
  }
  void end() {
    (void)kill(pid_, SIGKILL);
    (void)waitpid(pid_, &ending_.status, 0);
    ended_ = true;
  }

  pid_t pid_ = 0;
  int report_ = -1;
  bool done_ = false;
  bool ended_ = false;
  Clock::time_point exit_limit_;
  Ending ending_;
};

}  // namespace

bool Member::meet() const {
  char byte = 'm';
  return send_all(other_, &byte, 1) && receive_all(other_, &byte, 1);
}

NcclId Member::share_id() const {
  NcclId id{};
  if (rank_ == 0) id = make_nccl_id();
  const bool shared =
      rank_ == 0 ? send_all(other_, &id, sizeof id) : receive_all(other_, &id, sizeof id);
  if (!shared) throw std::runtime_error("the other process has gone");
  return id;
}

bool Ending::clean() const {
  return !hung_in_body && !hung_at_exit && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool Ending::killed_by(int signal) const {
  return !hung_in_body && !hung_at_exit && WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

int count_gpus() {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int gpus = 0;
    _exit(cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status);
}

std::array<Ending, 2> in_two_processes(const std::function<void(const Member&)>& body,
                                       std::chrono::seconds bound) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw std::runtime_error("socketpair");
  std::fflush(stdout);
  Child first(0, sockets[0], sockets[1], body);
  Child second(1, sockets[1], sockets[0], body);
  // Held by the processes alone: each sees when the other goes.
  close(sockets[0]);
  close(sockets[1]);
  const Clock::time_point limit = Clock::now() + bound;
  for (;;) {
    const bool first_ended = first.look(limit);
    const bool second_ended = second.look(limit);
    if (first_ended && second_ended) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {first.ending(), second.ending()};
}

}  // namespace shardloss::test
