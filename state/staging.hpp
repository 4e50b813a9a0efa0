// Staging: the copy of a state that an asynchronous save writes while the trainer goes on. After DCP's AsyncStager.
//
// A copy is made in two steps: `begin`, on the thread that called `async_save`, and `Staging::finish`, on the same thread or, for an
// overlapped save, on the save's own. Between the two the caller's tensors may be read, but neither written nor resized.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <cairn/state/state_dict.hpp>

namespace cairn {

struct StagingOptions {
  // Keeps the memory of the copies for the next save, which takes it again if names, shapes, strides, dtypes and shared memory are the
  // same. Otherwise it is made anew. Off: given back at the end of each save.
  bool cache_staged_state_dict = false;
  // Off: `async_save` returns before the copy is complete, and the trainer calls `wait_staged` before it changes the state, as a rule
  // right before `optimizer.step()`.
  bool block_on_staging = true;
  // What comes from devices is put into page-locked memory, so that copying it keeps no thread busy; where there is none to be had, into
  // plain memory. LibTorch's allocator of page-locked memory takes the next power of two, and keeps what is given back for later.
  bool use_pinned_memory = true;
  // Host memory of all copies of this checkpointer together, those in flight and those kept; bytes, 0: no bound. A save that needs more
  // fails with kPrecondition on all ranks.
  std::uint64_t bytes_max = 0;
  // For those short of memory: no copy of the state is made. Cairn's writer copies its tensors in the order of the plan, through a ring of
  // at most this many bytes a rank, and writes what is in the ring meanwhile. `async_save` returns when the last of them was copied
  // (or, without `block_on_staging`, at once): after all of the planning, all earlier saves, and, of a state that is larger than the
  // ring, most of the writing. The ring is kept for the next save until `release`; the options above but `block_on_staging` do nothing.
  //
  // Until the save is staged its tensors are the caller's own: not to be written nor resized. They are held until it has ended. A user's
  // own writer may read what `resolve_data` gave it for as long as it holds it, asks for each item once, and the save is staged when it
  // has let go of all tensors; that memory, and its bound, is its own.
  bool stream = false;
  std::uint64_t stream_bytes_max = 256u << 20;
};

// One state being copied. Holds what it still reads.
class Staging {
 public:
  virtual ~Staging() = default;
  // Once: blocks until everything is copied, and returns the copy: the same dict, with tensors on the host that nobody else writes to.
  // Throws kPrecondition, naming the tensor, if one was resized meanwhile.
  virtual StateDict finish() = 0;
};

// A user's own: derive, and pass it in AsyncSaveOptions. One that throws fails the save on all ranks. One thread at a time calls it,
// except for `bytes_held`, which may be called at any time; memory of copies may come back on any thread.
class AsyncStager {
 public:
  virtual ~AsyncStager() = default;
  // `state` has no Stateful objects any more. Its structure and plain values are copied here; of tensors, those on devices begin to
  // move, in the order of the work that the calling thread's current streams have been given.
  virtual std::unique_ptr<Staging> begin(const StateDict& state) = 0;
  // Gets the memory that staging such a state will need.
  virtual void prepare(const StateDict& /*state*/) {}
  // Gives back what is kept between saves; what is in use, when it is not any more.
  virtual void release() {}
  // Host memory, in use and kept.
  virtual std::uint64_t bytes_held() const { return 0; }
  // Whether what `finish` returns, at once, still refers to the caller's tensors: the save is staged when the writer has let go of them.
  virtual bool streams() const { return false; }
};

// Cairn's own.
//
// Tensors that share memory share it in the copy, strides are kept, and so are gaps between elements, up to as many bytes as are used.
// Everything of one kind of memory lies in one allocation. What it cannot copy (sparse and quantized tensors) stays as it is: planning
// refuses that, naming all of it.
class DefaultStager : public AsyncStager {
 public:
  // `note` is told when memory that was kept does not fit any more, or page-locked memory is not to be had; on the thread of `begin` or
  // `prepare`.
  explicit DefaultStager(StagingOptions options = {}, std::function<void(std::string_view what)> note = {});
  ~DefaultStager() override;
  // Errors: kPrecondition beyond `bytes_max`, or for a device whose current stream is being captured into a graph; kUnavailable if
  // there is no memory.
  std::unique_ptr<Staging> begin(const StateDict& state) override;
  void prepare(const StateDict& state) override;
  void release() override;
  std::uint64_t bytes_held() const override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// That of StagingOptions::stream.
class StreamingStager : public AsyncStager {
 public:
  std::unique_ptr<Staging> begin(const StateDict& state) override;
  bool streams() const override { return true; }
};

}  // namespace cairn
