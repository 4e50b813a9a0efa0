// The engines know the caller's tensors only as runs of bytes. state/tensor_items.hpp implements
// these interfaces. Internal.
#pragma once

#include <cstdint>
#include <memory>

#include <cairn/base/bytes.hpp>
#include <cairn/planning/dtype.hpp>
#include <cairn/planning/plan.hpp>

namespace cairn {

// A tensor as a run of bytes: its elements in row-major order. Thread-safe if concurrent calls use
// different elements. Positions and lengths count bytes of the run. They must be multiples of the
// element size unless `direct()` is set; otherwise functions throw InternalError.
class ElementRun {
 public:
  virtual ~ElementRun() = default;
  // Returns the length of the run.
  virtual std::uint64_t size_bytes() const = 0;
  // Returns false for memory of a device, which is copied best through page-locked blocks.
  virtual bool is_on_host() const = 0;
  // Returns the memory that holds the run, if it is on the host, contiguous and needs no
  // conversion; otherwise nullptr.
  virtual char* direct() const = 0;
  // These copies come after the work that the thread has entered (ItemHooks::enter_thread), and are
  // done when the function returns.
  //
  // Copies bytes of the run, from `first` on, to `destination`.
  virtual void read(std::uint64_t first, MutableByteSpan destination) const = 0;
  // Copies `source` to the run, from `first` on.
  virtual void write(std::uint64_t first, ByteSpan source) const = 0;
};

// Made on the caller's thread. Its other functions are called on threads of an engine, several at
// once.
class ItemHooks {
 public:
  virtual ~ItemHooks() = default;
  // Orders the thread's work on devices after what the caller's thread had queued when this object
  // was made, until the result is destroyed.
  virtual std::shared_ptr<void> enter_thread() const = 0;
};

// Gives a writer the data of planned items. Throws kMismatch or kUnsupported if they do not fit
// the plan, and any exception of the user's planner.
class ItemSource : public ItemHooks {
 public:
  // Returns the elements of a tensor item. The run keeps its tensor alive.
  virtual std::shared_ptr<const ElementRun> elements_of(const WriteItem& item) = 0;
  // Returns the bytes of a bytes item. Called once for each.
  virtual Bytes bytes_of(const WriteItem& item) = 0;
};

// Takes the data of planned items from a reader. Throws as ItemSource does.
class ItemDestination : public ItemHooks {
 public:
  // Returns where the elements of an item go; they are stored as `stored`.
  virtual std::shared_ptr<const ElementRun> elements_for(const ReadItem& item, DType stored) = 0;
  // Ends an item whose elements have all been written to the run of `elements_for`.
  virtual void commit(const ReadItem& item, const ElementRun& elements) = 0;
  // Takes the bytes of a bytes item, and ends it.
  virtual void take_bytes(const ReadItem& item, Bytes bytes) = 0;
};

}  // namespace cairn
