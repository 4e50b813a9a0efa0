// Maps URL schemes to the factories that open them.
#include <map>

#include <cairn/base/error.hpp>
#include <cairn/base/injection.hpp>
#include <cairn/base/mutex.hpp>
#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/file_store.hpp>
#include <cairn/storage/stores/memory_store.hpp>
#ifdef CAIRN_WITH_S3
#include <cairn/storage/stores/s3_store.hpp>
#endif
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/storage/stores/tier_copier.hpp>
#include <cairn/storage/stores/url.hpp>

namespace cairn {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::string, StoreFactory> factories CAIRN_GUARDED_BY(mutex){
      {"file", open_file_store},
      {"mem", open_memory_store},
      {"tiered", open_tiered_store},
#ifdef CAIRN_WITH_S3
      {"s3", open_s3_store},
#endif
  };
};

// Never destroyed: stores may be opened while the process exits.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

}  // namespace

bool is_store_registered(const std::string& scheme) {
  Registry& known = registry();
  MutexLock lock(known.mutex);
  return known.factories.count(scheme) > 0;
}

void register_store(const std::string& scheme, StoreFactory factory) {
  if (!is_scheme_name(scheme))
    throw Error(ErrorCode::kInvalidArgument,
                "cannot register store scheme \"" + scheme +
                    "\": a scheme is a letter and one or more letters, digits, '+', '-' or '.', without \"://\"");
  if (!factory) throw Error(ErrorCode::kInvalidArgument, "cannot register store scheme \"" + scheme + "\": its factory is empty");
  Registry& known = registry();
  MutexLock lock(known.mutex);
  if (!known.factories.emplace(lower_case(scheme), std::move(factory)).second)
    throw Error(ErrorCode::kAlreadyExists,
                "cannot register store scheme \"" + scheme + "\": it is registered already; choose another name");
}

std::shared_ptr<Store> open_store(const std::string& url) {
  const StoreUrl parts = split_url(url);
  const std::string scheme = parts.scheme.empty() ? "file" : parts.scheme;
  StoreFactory factory;
  {
    Registry& known = registry();
    MutexLock lock(known.mutex);
    const auto found = known.factories.find(scheme);
    if (found == known.factories.end()) {
      std::string names;
      for (const auto& entry : known.factories) names += (names.empty() ? "" : ", ") + entry.first;
      throw Error(ErrorCode::kInvalidArgument, "cannot open store \"" + url + "\": unknown URL scheme \"" + scheme +
                                                   "\"; known are " + names + "; others are added with register_store");
    }
    factory = found->second;
  }
  // Called without the lock: a factory is user code and may itself open stores.
  std::shared_ptr<Store> store = factory(url);
  if (!store) throw Error(ErrorCode::kPrecondition, "cannot open store \"" + url + "\": the factory of its scheme returned none");
  // Around any kind of store, so that faults hit all of them in the same way.
  if (auto injector = active_injector()) return inject_faults(std::move(store), std::move(injector));
  return store;
}

}  // namespace cairn
