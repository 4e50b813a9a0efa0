// The S3 store against a real server, which tests/s3/s3_test.py starts.
#include <cairn/tests/support/plain.hpp>
// The suite uses doctest, which the line above brings.
#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include <cairn/base/log.hpp>
#include <cairn/base/save_id.hpp>
#include <cairn/storage/format/commit_footer.hpp>
#include <cairn/storage/format/commit_head.hpp>
#include <cairn/storage/format/commit_record.hpp>
#include <cairn/storage/format/names.hpp>
#include <cairn/storage/presence.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/tests/s3/s3_place.hpp>
#include <cairn/tests/storage/store_conformance.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

TEST_CASE("a bucket keeps the store's contract") {
  check_store_conformance([] { return open_store(new_s3_place()); });
}

// Ceph's gateway 16 ignores If-None-Match in versioned buckets.
TEST_CASE("a bucket whose server ignores conditions is refused before a save writes to it") {
  const std::string bucket = "cairn-versioned";
  S3Client client(bucket, [&] { return s3_settings_from_environment(bucket); });
  REQUIRE(client.send({"PUT"}).succeeded());
  S3Request versioning{"PUT"};
  versioning.query = {{"versioning", ""}};
  const std::string status = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
  versioning.body = status;
  REQUIRE(client.send(versioning).succeeded());
  const auto store = open_store("s3://" + bucket + "/" + random_hex(*system_random(), 64));
  const Thrown error = thrown_by([&] { store->begin_attempt("save"); });
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::kUnsupported);
  CHECK(error.says("versioned"));
  CHECK(error.says(bucket));
  CHECK(store->open_attempts().empty());
}

namespace {

// A client whose process dies: from request `ordinal` on, counted from 0, none succeeds. That one
// request may still reach the server.
class DyingClient : public S3Client {
 public:
  DyingClient(std::size_t ordinal, bool reaches_server)
      : S3Client(kS3Bucket, [] { return s3_settings_from_environment(kS3Bucket); }),
        ordinal_(ordinal),
        reaches_server_(reaches_server) {}
  S3Response send(const S3Request& request) override {
    const std::size_t now = requests_++;
    if (now > ordinal_) throw Error(ErrorCode::kUnavailable, "dead");
    if (now < ordinal_) return S3Client::send(request);
    if (reaches_server_) S3Client::send(request);
    throw Error(ErrorCode::kUnavailable, "killed");
  }
  std::size_t requests() const { return requests_; }

 private:
  const std::size_t ordinal_;
  const bool reaches_server_;
  std::atomic<std::size_t> requests_{0};
};

// A client whose requests are sent by a function of the test, which calls `send` for that.
class HookedClient : public S3Client {
 public:
  using Send = std::function<S3Response(const S3Request&)>;
  using Hook = std::function<S3Response(const S3Request& request, const Send& send)>;
  explicit HookedClient(Hook hook)
      : S3Client(kS3Bucket, [] { return s3_settings_from_environment(kS3Bucket); }), hook_(std::move(hook)) {}
  S3Response send(const S3Request& request) override {
    return hook_(request, [this](const S3Request& sent) { return S3Client::send(sent); });
  }

 private:
  const Hook hook_;
};

bool has_condition(const S3Request& request) {
  return std::any_of(request.headers.begin(), request.headers.end(), [](const auto& header) { return header.first == "If-Match"; });
}

// A client to which something happens just before it replaces or removes the commit record for the
// first time. With `answer_is_lost` it has replaced the record before, and asks again after.
class OvertakenClient : public S3Client {
 public:
  explicit OvertakenClient(std::function<void()> overtake, bool answer_is_lost = false, const std::string& host = "127.0.0.1")
      : S3Client(kS3Bucket,
                 [host] {
                   S3Settings settings = s3_settings_from_environment(kS3Bucket);
                   settings.endpoint.replace(settings.endpoint.find("127.0.0.1"), 9, host);
                   return settings;
                 }),
        overtake_(std::move(overtake)),
        answer_is_lost_(answer_is_lost) {}
  S3Response send(const S3Request& request) override {
    if (has_condition(request) && request.key.find(kCommitRecordName) != std::string::npos && overtake_) {
      if (answer_is_lost_) S3Client::send(request);
      std::exchange(overtake_, {})();
      if (answer_is_lost_) {
        S3Response again = S3Client::send(request);
        again.was_repeated = true;
        return again;
      }
    }
    // Ceph removes objects without regard to conditions, and other servers do not.
    if (request.method == std::string("DELETE") && has_condition(request)) {
      if (S3Client::look(request.key).etag != request.headers.front().second) {
        S3Response refused;
        refused.status = 412;
        return refused;
      }
    }
    return S3Client::send(request);
  }

 private:
  std::function<void()> overtake_;
  const bool answer_is_lost_;
};

std::string path_of(const std::string& url) { return url.substr(std::string("s3://").size() + std::string(kS3Bucket).size() + 1); }

std::shared_ptr<Store> store_with(std::shared_ptr<S3Client> client, const std::string& url) {
  return std::make_shared<S3Store>(kS3Bucket, path_of(url), std::move(client));
}

// Returns how many uploads below a place have begun and not ended.
int uploads_at(const std::string& url) {
  S3Request request;
  request.query = {{"uploads", ""}, {"prefix", path_of(url) + "/"}};
  int count = 0;
  const auto client = s3_client();
  visit_s3_xml(client->send(request).body, "uploads", [&](const std::string& path, const std::string&) {
    if (path == "ListMultipartUploadsResult/Upload") ++count;
  });
  return count;
}

CreateOptions in_parts(Store& store) {
  CreateOptions options;
  options.part_bytes = store.traits().part_bytes_min;
  return options;
}

// The steps of the write engine and the coordinator in a save.
void save_to(Store& store, const std::string& save_id, const std::string& part, const std::string& donor = "") {
  store.begin_attempt(save_id);
  if (!donor.empty()) store.link(donor, "__0_1_" + save_id + ".distcp");
  const auto writer = store.create("__0_0_" + save_id + ".distcp", in_parts(store));
  writer->write_at(part.size(), "tail");
  writer->write_at(0, part);
  writer->sync(part.size() + 4);
  store.publish(save_id, "record of " + save_id, Overwrite::kAllowed);
}

}  // namespace

TEST_CASE("a process killed at any request of a save leaves the old or the new record") {
  const std::string place = new_s3_place();
  const auto plain = open_store(place);
  const std::string part(plain->traits().part_bytes_min, 'p');
  std::string current = "cairn-0";
  save_to(*plain, current, part);
  bool ended = false;
  for (std::size_t ordinal = 0; !ended; ++ordinal) {
    for (const bool reaches_server : {false, true}) {
      CAPTURE(ordinal);
      CAPTURE(reaches_server);
      const std::string id = "cairn-" + std::to_string(ordinal) + (reaches_server ? "-sent" : "-cut");
      const auto client = std::make_shared<DyingClient>(ordinal, reaches_server);
      bool published = false;
      try {
        save_to(*store_with(client, place), id, part, place + "/__0_0_cairn-0.distcp");
        published = true;
      } catch (const Error&) {
      }
      ended = client->requests() <= ordinal;
      // The clean-up of the next save.
      plain->fence(id);
      const std::string record = get_object(*plain, kCommitRecordName);
      const bool is_new = record == "record of " + id;
      if (published) CHECK(is_new);
      if (is_new) current = id;
      CHECK(record == "record of " + current);
      const std::string files[] = {"__0_0_" + id + ".distcp", "__0_1_" + id + ".distcp"};
      for (const std::string& file : files)
        if (is_new) CHECK((get_object(*plain, file) == part + "tail"));
      plain->clear_attempt(id);
      CHECK_FALSE(plain->has_attempt(id));
      CHECK(uploads_at(place) == 0);
      for (const std::string& file : files)
        if (!is_new) plain->remove(file);
      CHECK(code_of([&] { plain->publish(id, "late", Overwrite::kAllowed); }) == ErrorCode::kFenced);
    }
  }
}

// A run is a place for each checkpoint, and each save looks at the records of all of them.
TEST_CASE("the head of a record, or that there is none, takes one request") {
  const std::string place = new_s3_place();
  for (const bool is_there : {false, true}) {
    if (is_there) {
      const auto plain = open_store(place);
      plain->begin_attempt("save");
      plain->publish("save", std::string(100'000, 'x') + "ub.", Overwrite::kRefused);  // as PyTorch's end
      plain->fence("save");
    }
    const auto client = std::make_shared<DyingClient>(1000, false);
    CHECK_FALSE(read_commit_head(*store_with(client, place)).has_value());
    CHECK(client->requests() == 1);
  }
}

TEST_CASE("a publication that has checked its attempt fails if a fence overtakes it") {
  for (const bool has_record : {false, true}) {
    for (const bool is_removed : {false, true}) {
      CAPTURE(has_record);
      CAPTURE(is_removed);
      const std::string place = new_s3_place();
      const auto plain = open_store(place);
      if (has_record) {
        plain->begin_attempt("before");
        plain->publish("before", "old", Overwrite::kRefused);
      }
      plain->begin_attempt("slow");
      const auto client = std::make_shared<OvertakenClient>([&] {
        plain->fence("slow");
        if (!is_removed) return;
        plain->retract();
        plain->clear_attempt("slow");
        plain->remove_root();
      });
      CHECK(code_of([&] { store_with(client, place)->publish("slow", "new", Overwrite::kAllowed); }) == ErrorCode::kFenced);
      CHECK(plain->exists(kCommitRecordName) == (has_record && !is_removed));
      if (plain->exists(kCommitRecordName)) CHECK(get_object(*plain, kCommitRecordName) == "old");
    }
  }
}

TEST_CASE("a fence whose process died leaves its attempt open, until another completes it") {
  const std::string place = new_s3_place();
  const auto plain = open_store(place);
  plain->begin_attempt("slow");
  plain->begin_attempt("other");
  const auto client = std::make_shared<OvertakenClient>([&] {
    plain->publish("other", "other record", Overwrite::kAllowed);
    const auto dying = std::make_shared<DyingClient>(0, true);
    CHECK(code_of([&] { store_with(dying, place)->fence("slow"); }) == ErrorCode::kUnavailable);
    CHECK(plain->open_attempts() == std::vector<std::string>{"slow"});
    CHECK(plain->fenced_attempts().empty());
    CHECK(code_of([&] { plain->clear_attempt("slow"); }) == ErrorCode::kPrecondition);
    plain->fence("slow");
    CHECK(plain->open_attempts().empty());
    CHECK(plain->fenced_attempts() == std::vector<std::string>{"slow"});
    plain->clear_attempt("slow");
  });
  CHECK(code_of([&] { store_with(client, place)->publish("slow", "slow record", Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(get_object(*plain, kCommitRecordName) == "other record");
}

TEST_CASE("a publication whose answer is lost has happened, although a fence follows") {
  for (const char* ended : {"slow", "another"}) {
    CAPTURE(ended);
    const std::string place = new_s3_place();
    const auto plain = open_store(place);
    plain->begin_attempt("slow");
    const auto client = std::make_shared<OvertakenClient>(
        [&] {
          if (std::string(ended) != "slow") plain->begin_attempt(ended);
          plain->fence(ended);
        },
        true);
    store_with(client, place)->publish("slow", "new", Overwrite::kRefused);
    CHECK(get_object(*plain, kCommitRecordName) == "new");
  }
}

TEST_CASE("a publication whose answer is lost replaces no later one") {
  for (const bool is_removed : {false, true}) {
    CAPTURE(is_removed);
    const std::string place = new_s3_place();
    const auto plain = open_store(place);
    plain->begin_attempt("slow");
    plain->begin_attempt("later");
    const auto client = std::make_shared<OvertakenClient>(
        [&] {
          if (is_removed)
            plain->retract();
          else
            plain->publish("later", "later record", Overwrite::kAllowed);
        },
        true);
    // Its caller fences the attempt, and looks again.
    CHECK(code_of([&] { store_with(client, place)->publish("slow", "slow record", Overwrite::kAllowed); }) ==
          ErrorCode::kUnavailable);
    CHECK(plain->exists(kCommitRecordName) == !is_removed);
    if (!is_removed) CHECK(get_object(*plain, kCommitRecordName) == "later record");
  }
}

TEST_CASE("a publication that looks while its attempt is fenced and cleared fails") {
  const std::string place = new_s3_place();
  const auto plain = open_store(place);
  plain->begin_attempt("before");
  plain->publish("before", "old", Overwrite::kAllowed);
  plain->begin_attempt("slow");
  // The fence has written the record again, and has not yet removed the attempt.
  const auto fencing = std::make_shared<DyingClient>(8, false);
  REQUIRE(code_of([&] { store_with(fencing, place)->fence("slow"); }) == ErrorCode::kUnavailable);
  REQUIRE(fencing->requests() == 9);
  int looks = 0;
  const auto client = std::make_shared<HookedClient>([&](const S3Request& request, const HookedClient::Send& send) {
    const bool is_look = request.method == std::string("GET") &&
                         (request.key.find(kOpenMark) != std::string::npos || request.key.find(kFencedMark) != std::string::npos);
    if (is_look && ++looks == 2) {  // between its looks at the two marks of the attempt
      s3_client()->send({"DELETE", "remove", "s3:DeleteObject", path_of(place) + "/" + kOpenMark + "slow"});
      plain->clear_attempt("slow");
    }
    return send(request);
  });
  CHECK(code_of([&] { store_with(client, place)->publish("slow", "new", Overwrite::kAllowed); }) == ErrorCode::kFenced);
  CHECK(get_object(*plain, kCommitRecordName) == "old");
}

TEST_CASE("removing an empty place spares a record that was published meanwhile") {
  const std::string place = new_s3_place();
  const auto plain = open_store(place);
  plain->begin_attempt("old");
  plain->publish("old", "old", Overwrite::kRefused);
  plain->retract();
  const auto key_exists = [&] {
    S3Request request;
    request.key = path_of(place) + "/" + kCommitRecordName;
    return s3_client()->send(request).succeeded();
  };
  plain->remove_root();
  CHECK(key_exists());  // Ceph ignores the condition, so the mark stays
  // Another server, which does not ignore it, as far as this process knows.
  const auto obeying = std::make_shared<OvertakenClient>(
      [&] {
        plain->begin_attempt("new");
        plain->publish("new", "new", Overwrite::kRefused);
      },
      false, "localhost");
  obeying->remove("another object");
  store_with(obeying, place)->remove_root();
  REQUIRE(plain->exists(kCommitRecordName));
  CHECK(get_object(*plain, kCommitRecordName) == "new");
  plain->retract();
  store_with(obeying, place)->remove_root();
  CHECK_FALSE(key_exists());
}

namespace {

// The names of all objects below a place, also of those that the store hides.
Names keys_below(const std::string& url) {
  S3Request request;
  request.query = {{"list-type", "2"}, {"prefix", path_of(url) + "/"}};
  Names names;
  visit_s3_xml(s3_client()->send(request).body, "a listing", [&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") names.push_back(text.substr(path_of(url).size() + 1));
  });
  return names;
}

void save_and_remove(const std::string& place) {
  const auto store = open_store(place);
  store->begin_attempt("save");
  store->publish("save", "record", Overwrite::kRefused);
  store->retract();
  store->remove_root();
}

}  // namespace

TEST_CASE("the trial of a server's conditions leaves nothing, and is made once") {
  const std::string place = new_s3_place();
  const auto client = std::make_shared<DyingClient>(1000, false);
  const auto store = store_with(client, place);
  open_store(new_s3_place())->begin_attempt("before");
  store->begin_attempt("save");
  CHECK(client->requests() == 3);
  store->publish("save", "record", Overwrite::kRefused);
  CHECK(client->requests() == 6);
  CHECK(keys_below(place) == Names{kCommitRecordName});
}

TEST_CASE("a small data file takes two requests, of which one reads it back") {
  const auto client = std::make_shared<DyingClient>(1000, false);
  const auto store = store_with(client, new_s3_place());
  CreateOptions options = in_parts(*store);
  options.expected_bytes = 7;
  const auto writer = store->create(data_file_name(0, 0, make_save_id(std::string(32, '0'), std::string(16, '0'), 1)), options);
  writer->write_at(0, "content");
  writer->sync(7);
  CHECK(client->requests() == 2);
}

TEST_CASE("places whose checkpoints were removed cost no requests, and can be used again") {
  const std::string run = parent_url(new_s3_place());
  const auto costs = [&](const Names& expected) {
    const auto client = std::make_shared<DyingClient>(1000, false);
    const Names found = store_with(client, run)->children();
    CAPTURE(found.size());
    CHECK((found == expected));
    return client->requests();
  };
  for (int step = 1; step <= 3; ++step) save_and_remove(run + "/step_" + std::to_string(step));
  CHECK(costs({}) == 1);  // this process has written the index
  CHECK(open_store(run)->list().empty());
  const auto again = open_store(run + "/step_2");
  again->begin_attempt("again");
  CHECK(costs({"step_2"}) == 1);
  again->publish("again", "new record", Overwrite::kRefused);
  CHECK(costs({"step_2"}) == 1);
  // A mark is all that the others keep.
  CHECK(keys_below(run + "/step_1") == Names{kCommitRecordName});
  // Without the index, or with a damaged one, the marks are looked at again.
  s3_client()->send({"DELETE", "remove", "s3:DeleteObject", path_of(run) + "/" + kRunIndexName});
  CHECK(costs({"step_1", "step_2", "step_3"}) == 2);
  open_store(run + "/step_1")->remove_root();
  CHECK(costs({"step_2", "step_3"}) == 1);
  S3Request damage{"PUT", "write", "s3:PutObject", path_of(run) + "/" + kRunIndexName};
  const std::string damaged = "step_2\nstep_3\n" + std::string(kFenceMarkBytes + 4, 'x');
  damage.body = damaged;
  s3_client()->send(damage);
  CHECK(costs({"step_1", "step_2", "step_3"}) == 3);
}

namespace {

std::string record_of(const std::string& id) {
  Metadata metadata;
  metadata.save_id = id;
  metadata.commit = CommitInfo{};
  metadata.commit->sequence = 1;
  metadata.commit->world_size = 1;
  return encode_commit_record(metadata);
}

}  // namespace

TEST_CASE("a removal takes the name of the latest checkpoint out although the server has lost the next one") {
  const std::string run = parent_url(new_s3_place());
  bool is_swallowed = false;
  const auto client = std::make_shared<HookedClient>([&](const S3Request& request, const HookedClient::Send& send) {
    if (!is_swallowed || request.method != std::string("PUT") || request.key.find(kRunIndexName) == std::string::npos)
      return send(request);
    is_swallowed = false;
    S3Response answer;
    answer.status = 200;
    answer.etag = std::string(32, 'e');
    return answer;
  });
  for (const int step : {1, 2}) {
    const std::string id = make_save_id(std::string(32, '0'), "x", static_cast<std::uint64_t>(step));
    const auto store = store_with(client, run + "/step_" + std::to_string(step));
    store->begin_attempt(id);
    is_swallowed = step == 2;
    store->publish(id, record_of(id), Overwrite::kRefused);
  }
  REQUIRE_FALSE(is_swallowed);
  store_with(client, run + "/step_1")->retract();
  const auto store = open_store(run);
  CHECK_FALSE(store->look().latest.has_value());
}

TEST_CASE("a removal with a mark spares the record of a save that was published meanwhile") {
  const std::string run = parent_url(new_s3_place()), place = run + "/step_1";
  const std::string old = make_save_id(std::string(32, '0'), "x", 1), later = make_save_id(std::string(32, '0'), "x", 2);
  const auto plain = open_store(place);
  plain->begin_attempt(old);
  plain->publish(old, record_of(old), Overwrite::kRefused);
  plain->begin_attempt(later);
  const auto client = std::make_shared<OvertakenClient>([&] { plain->publish(later, record_of(later), Overwrite::kAllowed); });
  CHECK(code_of([&] { store_with(client, place)->retract(removal_mark_name(old), "\n"); }) == ErrorCode::kPrecondition);
  CHECK(get_object(*plain, kCommitRecordName) == record_of(later));
  CHECK_FALSE(plain->exists(removal_mark_name(old)));
}

TEST_CASE("the parts of ranks are not hidden by a removal in their place") {
  const std::string run = parent_url(new_s3_place()), place = run + "/step_1";
  const auto publish_part = [](const std::string& in) {
    const auto part = open_store(in + "/rank_0_of_2");
    part->begin_attempt("save");
    part->publish("save", "record", Overwrite::kAllowed);
  };
  const auto failed = open_store(place + "/rank_0_of_2");
  failed->fence("failed");  // leaves a mark, and nothing else
  failed->clear_attempt("failed");
  const auto store = open_store(place);
  store->contents();
  store->remove_root();
  publish_part(place);
  CHECK(open_store(run)->children() == Names{"step_1"});
  save_and_remove(run + "/step_2");
  REQUIRE(open_store(run)->children() == Names{"step_1"});
  publish_part(run + "/step_2");
  CHECK(open_store(run)->children() == Names{"step_1", "step_2"});
}

TEST_CASE("a removal that was slow does not hide a save to the same place") {
  for (const char* kind : {"between its steps", "when the index is new"}) {
    CAPTURE(kind);
    const std::string run = parent_url(new_s3_place());
    if (kind[0] == 'b') save_and_remove(run + "/step_2");
    const auto plain = open_store(run + "/step_1");
    plain->begin_attempt("old");
    plain->publish("old", "old record", Overwrite::kRefused);
    plain->retract();
    bool has_listed = false;
    const auto client = std::make_shared<HookedClient>([&](const S3Request& request, const HookedClient::Send& send) {
      S3Response response = send(request);
      if (!request.key.empty() || std::exchange(has_listed, true)) return response;
      plain->begin_attempt("new");
      plain->publish("new", "new record", Overwrite::kRefused);
      CHECK(open_store(run)->children() == Names{"step_1"});
      return response;
    });
    store_with(client, run + "/step_1")->remove_root();
    CHECK(open_store(run)->children() == Names{"step_1"});
    CHECK(get_object(*plain, kCommitRecordName) == "new record");
  }
}

TEST_CASE("a fence does not write back a record that was damaged on its way") {
  const std::string place = new_s3_place();
  const auto plain = open_store(place);
  save_to(*plain, "one", std::string(plain->traits().part_bytes_min, 'p'));
  plain->begin_attempt("two");
  bool is_damaged = false;  // one byte of the first record that is read as a whole
  const auto damage = [&](const S3Request& request, const HookedClient::Send& send) {
    S3Response response = send(request);
    if (request.offset == 0u && request.destination.size() > 1 && !std::exchange(is_damaged, true))
      request.destination.data()[0] ^= 1;
    return response;
  };
  const auto damaging = store_with(std::make_shared<HookedClient>(damage), place);
  CHECK(code_of([&] { damaging->fence("two"); }) == ErrorCode::kUnavailable);
  CHECK(get_object(*plain, kCommitRecordName) == "record of one");
  damaging->fence("two");
  CHECK(get_object(*plain, kCommitRecordName) == "record of one");
}

TEST_CASE("clearing an attempt aborts its own uploads only") {
  const std::string place = new_s3_place();
  const auto store = open_store(place);
  const auto writer = store->create("__0_0_cairn-10.distcp", in_parts(*store));
  const std::string part(store->traits().part_bytes_min, 'p');
  writer->write_at(0, part);
  for (const char* id : {"cairn-1", "tests"}) {
    store->fence(id);
    store->clear_attempt(id);
  }
  writer->sync(part.size());
  CHECK((get_object(*store, "__0_0_cairn-10.distcp") == part));
}

TEST_CASE("an upload that is discarded is aborted, and its parts are gone") {
  const std::string place = new_s3_place();
  const auto store = open_store(place);
  const auto writer = store->create("__0_0_x.distcp", in_parts(*store));
  writer->write_at(0, std::string(store->traits().part_bytes_min, 'p'));
  CHECK(uploads_at(place) == 1);
  writer->discard();
  CHECK(uploads_at(place) == 0);
}

TEST_CASE("the server copies an object to a second name") {
  const std::string from = new_s3_place(), to = new_s3_place();
  std::uint64_t sent = 0;
  const auto store = store_with(std::make_shared<HookedClient>([&](const S3Request& request, const HookedClient::Send& send) {
                                  sent += request.body.size();
                                  return send(request);
                                }),
                                to);
  const auto donor = open_store(from);
  const std::string content = std::string(donor->traits().part_bytes_min, 'p') + "tail";
  for (const auto& [name, whole] : {std::pair<std::string, std::string>("a b", content), {"none", ""}}) {
    const auto writer = donor->create(name, in_parts(*donor));
    for (std::size_t at = 0; at < whole.size(); at += donor->traits().part_bytes_min)
      writer->write_at(at, whole.substr(at, donor->traits().part_bytes_min));
    writer->sync(whole.size());
    CHECK(store->link(from + "/" + name, name) == whole.size());
    CHECK(code_of([&] { store->link(from + "/" + name, name); }) == ErrorCode::kAlreadyExists);
  }
  for (const char* name : {"a b", "none"}) donor->remove(name);
  CHECK(code_of([&] { store->link(from + "/a b", "absent"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { store->link("s3://elsewhere/object", "far"); }) == ErrorCode::kUnsupported);
  CHECK((get_object(*store, "a b") == content));
  CHECK(store->size_bytes("none") == 0);
  CHECK(sent < 1000);
  CHECK(uploads_at(to) == 0);
}

TEST_CASE("a copy that the server refuses leaves nothing, and the object can be written instead") {
  const std::string from = new_s3_place();
  const auto donor = open_store(from);
  const std::string content(donor->traits().part_bytes_min, 'p');
  const auto write_to = [&](Store& store, const std::string& name) {
    const auto writer = store.create(name, in_parts(store));
    writer->write_at(0, content);
    writer->sync(content.size());
  };
  write_to(*donor, "object");
  // Sources that the server refuses: there is no such bucket, and one that names no bucket.
  for (const char* source : {"cairn-no-such-bucket/object", "/"}) {
    CAPTURE(source);
    const std::string to = new_s3_place();
    const auto store = store_with(std::make_shared<HookedClient>([&](const S3Request& request, const HookedClient::Send& send) {
                                    S3Request sent = request;
                                    for (auto& [name, value] : sent.headers)
                                      if (name == "x-amz-copy-source") value = source;
                                    return send(sent);
                                  }),
                                  to);
    CHECK(thrown_by([&] { store->link(from + "/object", "object"); }).is_error);
    CHECK(uploads_at(to) == 0);
    CHECK_FALSE(store->exists("object"));
    write_to(*store, "object");
    CHECK((get_object(*store, "object") == content));
  }
}

TEST_CASE("parts that do not follow each other to the given length are refused") {
  const auto store = open_store(new_s3_place());
  const CreateOptions options = in_parts(*store);
  const std::string part(options.part_bytes, 'p');
  const auto writer = store->create("object", options);
  CHECK(code_of([&] { writer->write_at(1, part); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { writer->write_at(0, part + "x"); }) == ErrorCode::kInvalidArgument);
  writer->write_at(2 * options.part_bytes, part);
  CHECK(code_of([&] { writer->sync(3 * options.part_bytes); }) == ErrorCode::kInvalidArgument);
  writer->discard();
  CHECK_FALSE(store->exists("object"));
  CHECK(code_of([&] { store->create("whole")->write_at(0, part + "x"); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("a part of which the server holds other bytes fails its object, and nothing appears") {
  const std::string place = new_s3_place();
  const auto wrong_etag = [](const S3Request& request, const HookedClient::Send& send) {
    S3Response response = send(request);
    if (!request.query.empty() && request.query.front().first == "partNumber") response.etag = std::string(32, '0');
    return response;
  };
  const auto store = store_with(std::make_shared<HookedClient>(wrong_etag), place);
  const auto writer = store->create("object", in_parts(*store));
  writer->write_at(0, std::string(store->traits().part_bytes_min, 'p'));
  const Thrown error = thrown_by([&] { writer->sync(store->traits().part_bytes_min); });
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::kUnavailable);
  CHECK(error.says("InvalidPart"));
  CHECK(error.says(place + "/object"));
  writer->discard();
  CHECK_FALSE(store->exists("object"));
  CHECK(uploads_at(place) == 0);
}

// Under tests/s3/s3_test.py some of these requests stall, or are answered a few bytes a second.
TEST_CASE("requests that stall or trickle are given up and repeated") {
  const auto client = s3_client([](S3Settings& settings) { settings.stall_timeout = std::chrono::seconds(1); });
  const auto store = store_with(client, new_s3_place());
  const std::string content(100'000, 'x');
  put_object(*store, "object", content);
  for (int i = 0; i < 8; ++i) CHECK((get_object(*store, "object") == content));
}

TEST_CASE("a request is not repeated when its time is over") {
  int tries = 0;
  const auto client = s3_client([&](S3Settings& settings) {
    ++tries;  // with these settings they are read before each try
    settings.endpoint = "http://127.0.0.1:1";
    settings.tries_max = 3;
    settings.renewal_pause = settings.retry_time = std::chrono::seconds(0);
    settings.credentials.expires = std::chrono::system_clock::now();
  });
  CHECK(code_of([&] { client->send({"GET"}); }) == ErrorCode::kUnavailable);
  CHECK(tries == 1);
}

TEST_CASE("a record that was fenced reads as before, also in a copy made without Cairn") {
  const std::string place = new_s3_place();
  const auto store = open_store(place);
  store->begin_attempt("one");
  store->publish("one", "record", Overwrite::kRefused);
  for (const char* id : {"two", "three"}) {
    store->begin_attempt(id);
    store->fence(id);
    CHECK(get_object(*store, kCommitRecordName) == "record");
    CHECK(names_of(store->list()) == Names{kCommitRecordName});
    CHECK(store->list().front().size_bytes == 6);
  }
  S3Request request;
  request.key = path_of(place) + "/" + kCommitRecordName;
  const std::string copy = s3_client()->send(request).body;
  CHECK(copy.size() == 6 + kFenceMarkBytes);
  CHECK(ends_in_fence_mark(copy));
  // Nothing but a mark is no record.
  store->retract();
  CHECK_FALSE(store->exists(kCommitRecordName));
  CHECK(code_of([&] { store->size_bytes(kCommitRecordName); }) == ErrorCode::kNotFound);
  CHECK(store->list().empty());
}

TEST_CASE("a listing of more than one page is complete") {
  const auto store = open_store(new_s3_place());
  constexpr int kObjects = 1005;
  TogetherThreads::run(8, [&](int thread) {
    for (int i = thread; i < kObjects; i += 8) put_object(*store, "object " + std::to_string(i), "");
  });
  CHECK(store->list("object ").size() == kObjects);
}

TEST_CASE("credentials are read again before they expire, once for all threads") {
  std::atomic<int> reads{0};
  const auto client = s3_client([&](S3Settings& settings) {
    settings.renewal_pause = std::chrono::seconds(0);
    settings.credentials.expires =
        std::chrono::system_clock::now() + (++reads == 1 ? std::chrono::minutes(4) : std::chrono::hours(1));
  });
  const auto store = store_with(client, new_s3_place());
  CHECK_FALSE(store->exists("object"));
  CHECK(reads == 1);
  TogetherThreads::run(8, [&](int) { store->exists("object"); });
  CHECK(reads == 2);
}

TEST_CASE("a renewal delays no other request while the old credentials are valid") {
  std::atomic<int> reads{0};
  std::promise<void> renewing, answered;
  bool was_answered = false;
  const auto client = s3_client([&](S3Settings& settings) {
    const int read = ++reads;
    settings.renewal_pause = std::chrono::seconds(0);
    settings.credentials.expires = std::chrono::system_clock::now() + (read == 1 ? std::chrono::minutes(4) : std::chrono::hours(1));
    if (read != 2) return;
    renewing.set_value();
    was_answered = answered.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  });
  const auto store = store_with(client, new_s3_place());
  CHECK_FALSE(store->exists("object"));
  std::thread renewer([&] { store->exists("object"); });
  renewing.get_future().wait();
  CHECK_FALSE(store->exists("object"));
  answered.set_value();
  renewer.join();
  CHECK(was_answered);
  CHECK(reads == 2);
}

TEST_CASE("credentials that cannot be renewed are used until the server refuses them") {
  int reads = 0;
  const auto client = s3_client([&](S3Settings& settings) {
    if (++reads > 1) throw Error(ErrorCode::kUnavailable, "the metadata service is away");
    settings.renewal_pause = std::chrono::seconds(0);
    settings.credentials.expires = std::chrono::system_clock::now();
  });
  const auto store = store_with(client, new_s3_place());
  std::string logged;
  set_log_sink([&](const LogLine& line) { logged += line.text; });
  put_object(*store, "object", "x");
  CHECK(get_object(*store, "object") == "x");
  set_log_sink({});
  CHECK(reads > 1);
  CHECK(logged.find("the metadata service is away") != std::string::npos);
  CHECK(logged.find(s3_settings_from_environment(kS3Bucket).credentials.secret_key) == std::string::npos);

  reads = 0;
  const auto refused = store_with(s3_client([&](S3Settings& settings) {
                                    if (++reads > 1) throw Error(ErrorCode::kUnavailable, "the metadata service is away");
                                    settings.credentials.access_key = "EXPIRED";
                                  }),
                                  store->url());
  CHECK(thrown_by([&] { get_object(*refused, "object"); }).says("the metadata service is away"));
}
