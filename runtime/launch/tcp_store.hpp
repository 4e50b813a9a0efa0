// Opens the LibTorch store through which ranks find each other.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include <cairn/base/error.hpp>
#include <cairn/base/signals_blocked.hpp>
#include <cairn/base/wait.hpp>
#include <cairn/base/wait_notices.hpp>
#include <cairn/runtime/launch/launchers.hpp>
#include <cairn/runtime/launch/meeting_store.hpp>

namespace c10d {
class Store;
class TCPStore;
struct TCPStoreOptions;
}  // namespace c10d

namespace cairn {

// Opens the store at MASTER_ADDR:MASTER_PORT. Rank 0 hosts it, unless the launcher's agent or the
// trainer already does. In an agent's store, each restart of the job sees only its own keys. If the
// port was computed from the name of the job, each job sees only its own keys. Throws kDeadline if
// nobody offers the store in time, or if the process that listens there does not answer;
// kUnavailable if rank 0 cannot host it. During the wait one rank logs warnings: rank 1 if rank 0
// hosts the store, rank 0 if the agent does. First raises the soft limit of descriptors
// (`provide_descriptors`).
c10::intrusive_ptr<c10d::Store> open_store(const Place& place, Deadline deadline, Duration first_notice = WaitNotices::kFirst);

// Opens a TCPStore with `options`. Works with every supported LibTorch: a host uses libuv only if
// LibTorch has it, and a rank that joins never asks for it. Takes at most a second longer than the
// timeout in `options`. Throws what TCPStore throws.
c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& host, c10d::TCPStoreOptions options);

// Returns the host that serves a TCPStore, as this process connects to it; "" for other stores.
std::string host_of_store(c10d::Store& store);

std::string seconds_text(std::chrono::milliseconds time);  // "1.5 s"

// The time beyond all deadlines of a conversation with a store, after which the store counts as
// silent.
constexpr std::chrono::milliseconds kSilentStore{3000};

// Runs `talk`, which uses a LibTorch store, on a thread of its own, and throws kDeadline if it does
// not return in time. LibTorch's stores wait forever for a server that does not answer: a stopped
// process, or a program that is not a store. The thread is then left running, so `talk` must own
// what it needs.
template <class Result>
Result bounded_talk(std::function<Result()> talk, const Deadline& deadline, const std::string& silence) {
  std::packaged_task<Result()> task(std::move(talk));
  auto result = task.get_future();
  std::thread thread = start_thread("cairn-meeting", std::move(task));
  const auto limit = deadline.left() + MeetingStore::kFarewell + kSilentStore;
  if (result.wait_for(limit) != std::future_status::ready) {
    thread.detach();
    throw Error(ErrorCode::kDeadline, silence);
  }
  // A process that exits while the thread ends would leave OpenSSL's state of the thread behind.
  thread.join();
  return result.get();
}

}  // namespace cairn
