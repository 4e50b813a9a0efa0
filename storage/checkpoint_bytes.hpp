// Reads tensors and values of a checkpoint as bytes, outside of a load. Internal.
#pragma once

#include <memory>
#include <string>

#include <cairn/base/bytes.hpp>
#include <cairn/base/cpu_share.hpp>
#include <cairn/planning/metadata.hpp>
#include <cairn/storage/engine/read_engine.hpp>
#include <cairn/storage/store.hpp>

namespace cairn {

// Not thread-safe, but not bound to a thread either.
class CheckpointBytes {
 public:
  // `verify`: checks the bytes read, as CheckpointReaderOptions::verify does.
  CheckpointBytes(std::shared_ptr<Store> store, std::shared_ptr<const Metadata> metadata, bool verify,
                  const ReadEngineOptions& options = {cpu_share()}, int rank = 0);

  // Returns the elements of `box` of tensor `fqn`, in row-major order. `stored` is its entry. The
  // chunks of `stored` should cover the box: elements outside of them are 0. Throws what
  // ReadEngine::read throws.
  Bytes elements(const std::string& fqn, const TensorStorageMetadata& stored, const Box& box);
  // Returns the bytes of a value.
  Bytes value(const std::string& fqn);

 private:
  void read(const LoadPlan& plan, const std::shared_ptr<ItemDestination>& destination);

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const Metadata> metadata_;
  const bool verify_;
  const int rank_;  // for error texts
  const std::shared_ptr<OpenedFiles> opened_;
  ReadEngine engine_;
};

}  // namespace cairn
