// A place in two tiers, near and far (storage/tiers.hpp).
//
// The commit protocol runs in the near tier alone. Reads take an object from the near tier if it is
// there, and from the far one otherwise. The near tier's record is as new as that of the far tier,
// or newer: resume_copies removes it if another node has saved later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/tier_copier.hpp>

namespace cairn {

class TieredStore : public Store {
 public:
  // `place` is a path below the tiers, such as "/run/step_1".
  TieredStore(std::shared_ptr<TierCopier> copier, const std::string& place);

  std::string url() const override { return copier_->url(place_); }
  bool is_shared() const override { return far_->is_shared(); }
  StoreTraits traits() const override { return near_->traits(); }
  void create_root() override;

  std::unique_ptr<ObjectWriter> create(const ObjectName& name, const CreateOptions& options = {}) override;
  void read(const ObjectName& name, const std::vector<ReadRange>& ranges) override;
  std::uint64_t size_bytes(const ObjectName& name) override;
  bool exists(const ObjectName& name) override;
  std::optional<ObjectEnd> read_end(const ObjectName& name, std::size_t bytes_max) override;
  bool is_taken(const ObjectName& name) override;
  std::vector<ObjectInfo> list(const ObjectName& prefix = "") override;
  std::vector<ObjectName> children() override;
  std::optional<LatestPlace> latest_place() override;  // of the far tier
  void remove(const ObjectName& name) override;

  void begin_attempt(const std::string& save_id, Overwrite overwrite = Overwrite::kAllowed) override;
  void publish(const std::string& save_id, ByteSpan record, Overwrite overwrite) override;
  void fence(const std::string& save_id) override { near_->fence(save_id); }
  std::vector<std::string> open_attempts() override { return near_->open_attempts(); }
  std::vector<std::string> fenced_attempts() override { return near_->fenced_attempts(); }
  void clear_attempt(const std::string& save_id) override { near_->clear_attempt(save_id); }

  void retract() override;
  void retract_with_mark(const ObjectName& mark, const std::string& text) override;
  bool leads_elsewhere() override;
  void remove_root() override;
  std::shared_ptr<Store> fallback() override { return far_; }

 private:
  class Writer;
  template <class Act, class Result>
  Result look_far(Act act, Result if_unknown) const;
  void retract_far();
  void remove_far(const ObjectName& name);

  const std::shared_ptr<TierCopier> copier_;
  const std::string place_;
  const std::shared_ptr<Store> near_;
  const std::shared_ptr<Store> far_;
};

std::shared_ptr<Store> open_tiered_store(const std::string& url);

// Stops the copies of this process as its death would, and forgets the pair. For tests.
void forget_tier(const std::string& name);

}  // namespace cairn
