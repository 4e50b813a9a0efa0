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
  virtual std::uint64_t size_bytes() const = 0;
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

// Lives as long as a thread of an engine calls hooks of the caller.
class EnteredThread {
 public:
  virtual ~EnteredThread() = default;
};

// Made on the caller's thread. Its other functions are called on threads of an engine, several at
// once.
class ItemHooks {
 public:
  virtual ~ItemHooks() = default;
  // Orders the thread's work on devices after what the caller's thread had queued when this object
  // was made, until the result is destroyed.
  virtual std::unique_ptr<EnteredThread> enter_thread() const = 0;
};

// Gives a writer the data of planned items. Throws kMismatch or kUnsupported if they do not fit
// the plan, and any exception of the user's planner.
class ItemSource : public ItemHooks {
 public:
  virtual std::shared_ptr<const ElementRun> elements_of(const WriteItem& item) = 0;
  virtual Bytes bytes_of(const WriteItem& item) = 0;
};

// Takes the data of planned items from a reader. Throws as ItemSource does.
class ItemDestination : public ItemHooks {
 public:
  // Returns where the elements of an item go; they are stored as `stored`.
  virtual std::shared_ptr<const ElementRun> elements_for(const ReadItem& item, DType stored) = 0;
  // Ends an item whose elements have all been written to the run of `elements_for`.
  virtual void commit(const ReadItem& item, const ElementRun& elements) = 0;
  virtual void take_bytes(const ReadItem& item, Bytes bytes) = 0;
};

}  // namespace cairn
