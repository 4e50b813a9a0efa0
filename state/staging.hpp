// Staging: copies a state so that an asynchronous save can write it while training continues.
// Modelled on DCP's AsyncStager.
//
// A copy has two steps. `begin` runs on the thread that called `async_save`. `Staging::finish` runs
// on the same thread or, for an overlapped save, on the save's own thread. Between the two steps
// the caller's tensors may be read, but neither written nor resized.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <cairn/state/state_dict.hpp>

namespace cairn {

struct StagingOptions {
  // Keeps the memory of the copies for the next save. That save reuses it if names, shapes,
  // strides, dtypes and memory sharing are the same, and otherwise allocates anew. If false, each
  // save frees its memory at the end.
  bool cache_staged_state_dict = false;
  // If false, `async_save` returns before the copy is complete. The trainer must then call
  // `wait_staged` before it changes the state, usually right before `optimizer.step()`.
  bool block_on_staging = true;
  // Copies device tensors into page-locked memory, so that the copy does not occupy a thread.
  // Page-locking takes long. It happens in `Checkpointer::prepare`; without that, a save copies
  // into plain memory, by way of small page-locked blocks, and memory that is kept is page-locked
  // in the background. If page-locked memory is not available, plain memory is used.
  bool use_pinned_memory = true;
  // Limit in bytes for all host memory that this checkpointer uses for copies of states or keeps
  // for later ones; 0: no limit. A save that needs more fails with kPrecondition on all ranks.
  std::uint64_t bytes_max = 0;
  // Streams the state instead of copying it, to save memory. Cairn's writer copies tensors in the
  // order of the plan through a ring buffer of at most `stream_bytes_max` bytes per rank, and
  // writes the buffer's contents at the same time. With `block_on_staging`, `async_save` returns
  // when the last tensor has been copied; otherwise it returns at once. The last copy comes after
  // all planning, after all earlier saves and, if the state is larger than the buffer, after most
  // of the writing. The buffer is kept for the next save until `Checkpointer::release`. Of the
  // options above, only `block_on_staging` has an effect.
  //
  // Until the save is staged, do not write or resize its tensors; the save holds references to the
  // tensors until the save ends. If you use a writer of your own, the save is staged when the
  // writer has released all results of `resolve_data`. Your writer may read a result for as long as
  // it holds the result, and must call `resolve_data` once for each item. `stream_bytes_max` does
  // not limit its memory.
  bool stream = false;
  std::uint64_t stream_bytes_max = 256u << 20;
};

// A state that is being copied. Holds references to the tensors that it still reads.
class Staging {
 public:
  virtual ~Staging() = default;
  // Blocks until everything is copied. Must be called once. Returns a dict like the one given to
  // `begin`, with tensors on the host that nobody else writes to (for an exception see
  // `AsyncStager::streams`). Throws kPrecondition, naming the tensor, if a tensor was resized since
  // `begin`.
  virtual StateDict finish() = 0;
};

// The interface of stagers. To use your own, derive from it and pass it in AsyncSaveOptions. If a
// stager throws, the save fails on all ranks. One thread at a time calls a stager, except for
// `bytes_held`, which may be called at any time. The memory of copies may be released on any
// thread.
class AsyncStager {
 public:
  virtual ~AsyncStager() = default;
  // Starts to copy `state`, which contains no Stateful objects. The structure and the plain values
  // of `state` are copied before `begin` returns. Copies of device tensors are ordered after the
  // work already queued on the calling thread's current streams.
  virtual std::unique_ptr<Staging> begin(const StateDict& state) = 0;
  // Allocates in advance the memory that staging `state` needs.
  virtual void prepare(const StateDict& /*state*/) {}
  // Frees memory kept between saves. Memory in use is freed when it is no longer used.
  virtual void release() {}
  // Returns the host memory in use and kept, in bytes.
  virtual std::uint64_t bytes_held() const { return 0; }
  // Returns true if `finish` returns at once with the caller's own tensors. In that case the save
  // is staged when the writer has released these tensors.
  virtual bool streams() const { return false; }
};

// Cairn's default stager.
//
// Tensors that share memory also share it in the copy. Strides are kept. Memory that a tensor's
// strides skip is copied too. If several tensors lie in one storage, the gaps between them are also
// copied, unless all gaps together are larger than the tensors. Each save makes at most two
// allocations, one of page-locked and one of plain memory. Sparse and quantized tensors cannot be
// copied and stay as they are; planning then throws an error that names them.
class DefaultStager : public AsyncStager {
 public:
  // Calls `note`, on the thread of `begin` or `prepare`, if kept memory no longer fits or
  // page-locked memory is not available.
  explicit DefaultStager(StagingOptions options = {}, std::function<void(std::string_view what)> note = {});
  ~DefaultStager() override;
  // Throws kPrecondition if `bytes_max` would be exceeded, or if the current stream of a device is
  // being captured into a graph. Throws kUnavailable if allocation fails.
  std::unique_ptr<Staging> begin(const StateDict& state) override;
  void prepare(const StateDict& state) override;
  void release() override;
  std::uint64_t bytes_held() const override;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// The stager for StagingOptions::stream.
class StreamingStager : public AsyncStager {
 public:
  std::unique_ptr<Staging> begin(const StateDict& state) override;
  bool streams() const override { return true; }
};

}  // namespace cairn
