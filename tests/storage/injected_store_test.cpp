// Injected faults of a store.
#include <cairn/tests/support/plain.hpp>
// The tools use doctest, which the line above brings.
#include <cairn/storage/stores/memory_store.hpp>
#include <cairn/storage/stores/store_decorator.hpp>
#include <cairn/tests/storage/store_conformance.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

// An empty store in memory, plain and with the faults of `spec`.
struct Faulty {
  explicit Faulty(const std::string& spec) {
    static int count = 0;
    const std::string url = "mem://injected_store_test_" + std::to_string(++count);
    plain = open_memory_store(url);
    InjectorHands hands = system_hands();
    hands.announce = [](const std::string&) {};
    InjectionNames names;
    names.operations = injectable_store_operations();
    store = inject_faults(plain, std::make_shared<Injector>(parse_injection(spec, names), std::nullopt, std::move(hands)));
  }
  std::shared_ptr<Store> plain;
  std::shared_ptr<Store> store;
};

const std::string kSaveId = "cairn-0123456789abcdef0123456789abcdef-00000000-1";

}  // namespace

TEST_CASE("every operation of a store can be made to fail, and does nothing then") {
  const std::map<std::string, std::function<void(Store&)>> operations{
      {"create_root", [](Store& store) { store.create_root(); }},
      {"create", [](Store& store) { store.create("new"); }},
      {"write_at", [](Store& store) { store.create("new")->write_at(0, "bytes"); }},
      {"sync", [](Store& store) { store.create("new")->sync(0); }},
      {"close", [](Store& store) { store.create("new")->close(0); }},
      {"read",
       [](Store& store) {
         char byte = 0;
         store.read("object", {{0, {&byte, 1}}});
       }},
      {"size_bytes", [](Store& store) { store.size_bytes("object"); }},
      {"exists", [](Store& store) { store.exists("object"); }},
      {"list", [](Store& store) { store.list(); }},
      {"children", [](Store& store) { store.children(); }},
      {"remove", [](Store& store) { store.remove("object"); }},
      {"begin_attempt", [](Store& store) { store.begin_attempt("another"); }},
      {"publish", [](Store& store) { store.publish(kSaveId, "record", Overwrite::kAllowed); }},
      {"fence", [](Store& store) { store.fence(kSaveId); }},
      {"open_attempts", [](Store& store) { store.open_attempts(); }},
      {"fenced_attempts", [](Store& store) { store.fenced_attempts(); }},
      {"clear_attempt", [](Store& store) { store.clear_attempt("fenced"); }},
      {"retract", [](Store& store) { store.retract(); }},
      {"remove_root", [](Store& store) { store.remove_root(); }},
  };
  CHECK(operations.size() == injectable_store_operations().size());
  for (const auto& name : injectable_store_operations()) {
    CAPTURE(name);
    REQUIRE(operations.count(name) == 1);
    Faulty faulty("throw@store:" + name);
    put_object(*faulty.plain, "object", "content");
    faulty.plain->begin_attempt(kSaveId);
    faulty.plain->begin_attempt("fenced");
    faulty.plain->fence("fenced");
    CHECK_THROWS_AS(operations.at(name)(*faulty.store), InjectedFault);
    CHECK(faulty.plain->exists("object"));
    CHECK_FALSE(faulty.plain->exists("new"));
    CHECK_FALSE(faulty.plain->exists(kCommitRecordName));
    CHECK(faulty.plain->open_attempts() == std::vector<std::string>{kSaveId});
    CHECK(faulty.plain->fenced_attempts() == std::vector<std::string>{"fenced"});
    // The rule applies only once.
    CHECK_NOTHROW(operations.at(name)(*faulty.store));
  }
}

TEST_CASE("a short write leaves the first half") {
  Faulty faulty("short-write@store:write_at,nth=2");
  const auto writer = faulty.store->create("object");
  writer->write_at(0, "0123456789");
  CHECK(code_of([&] { writer->write_at(10, "abcdefghij"); }) == ErrorCode::kUnavailable);
  writer->sync(20);
  CHECK(get_object(*faulty.plain, "object") == std::string("0123456789abcde\0\0\0\0\0", 20));
}

TEST_CASE("what is opened by URL meets faults once they are there, and not before") {
  const auto before = open_store("mem://injected_store_test_by_url");
  InjectorHands hands = system_hands();
  hands.announce = [](const std::string&) {};
  InjectionNames names;
  names.operations = injectable_store_operations();
  set_active_injector(std::make_shared<Injector>(parse_injection("throw@store:exists", names), std::nullopt, std::move(hands)));
  const auto after = open_store("mem://injected_store_test_by_url");
  set_active_injector(nullptr);
  CHECK(after->url() == before->url());
  CHECK(after->is_shared() == before->is_shared());
  CHECK_NOTHROW(before->exists("object"));
  CHECK_THROWS_AS(after->exists("object"), InjectedFault);
}
