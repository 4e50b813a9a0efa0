// Metrics of saves and loads, read back with a parser of the Prometheus text format.
#include <cairn/tests/support/torch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <cairn/base/error.hpp>
#include <cairn/runtime/checkpoints/checkpointer.hpp>
#include <cairn/runtime/observation/call_notifier.hpp>
#include <cairn/runtime/observation/metrics.hpp>
#include <cairn/runtime/observation/metrics_server.hpp>
#include <cairn/tests/support/captured_log.hpp>
#include <cairn/tests/support/free_port.hpp>
#include <cairn/tests/support/in_process_world.hpp>
#include <cairn/tests/support/interruptions.hpp>
#include <cairn/tests/support/own_child.hpp>
#include <cairn/tests/support/sample_state.hpp>
#include <cairn/tests/support/temporary_directory.hpp>

namespace {

// The calls of the test itself, which plays the clients, are not interrupted.
bool interrupts_server(const char* call) {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string(name) == "cairn-metrics" && cairn::testing::Interruptions::interrupts(call);
}

}  // namespace

extern "C" {
int __real_poll(pollfd* sockets, nfds_t count, int timeout_ms);
int __real_accept4(int socket, sockaddr* address, socklen_t* length, int flags);
ssize_t __real_recv(int socket, void* to, size_t size, int flags);
ssize_t __real_send(int socket, const void* from, size_t size, int flags);

int __wrap_poll(pollfd* sockets, nfds_t count, int timeout_ms) {
  return interrupts_server("poll") ? -1 : __real_poll(sockets, count, timeout_ms);
}
int __wrap_accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  return interrupts_server("accept4") ? -1 : __real_accept4(socket, address, length, flags);
}
ssize_t __wrap_recv(int socket, void* to, size_t size, int flags) {
  return interrupts_server("recv") ? -1 : __real_recv(socket, to, size, flags);
}
ssize_t __wrap_send(int socket, const void* from, size_t size, int flags) {
  return interrupts_server("send") ? -1 : __real_send(socket, from, size, flags);
}
}

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kEndOfWorld{60'000};

std::string metrics_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Checks each line against the exposition format
// (prometheus.io/docs/instrumenting/exposition_formats). Keeps each sample's value, keyed by its
// text before the value.
class Exposed {
 public:
  explicit Exposed(const std::string& text) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) [^\n]+");
    static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
    static const std::regex sample(
        "([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{[a-zA-Z_][a-zA-Z0-9_]*=\"([^\"\\\\]|\\\\[\\\\\"n])*\"(,[a-zA-Z_][a-zA-Z0-9_]*=\"([^\"\\\\]|"
        "\\\\[\\\\\"n])*\")*\\})? "
        "([-+0-9.eE]+|\\+Inf|NaN)");
    REQUIRE_FALSE(text.empty());
    CHECK(text.back() == '\n');
    std::istringstream lines(text);
    std::string family;
    std::map<std::string, double> buckets;  // last count of each series, keyed without `le`
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      std::smatch found;
      if (std::regex_match(line, found, help)) {
        family = found[1];
        CHECK(types.count(family) == 0);
      } else if (std::regex_match(line, found, type)) {
        CHECK(found[1] == family);
        types[family] = found[2];
      } else {
        REQUIRE(std::regex_match(line, found, sample));
        const std::string name = found[1], labels = found[2];
        const double value = std::stod(found[6]);
        const bool is_histogram = types[family] == "histogram";
        if (is_histogram)
          CHECK((name == family + "_bucket" || name == family + "_sum" || name == family + "_count"));
        else
          CHECK(name == family);
        CHECK((types[family] == "counter") == (name.size() > 6 && name.substr(name.size() - 6) == "_total"));
        CHECK(values.emplace(name + labels, value).second);
        if (is_histogram && name == family + "_bucket") {
          const std::string series = family + "_count" + labels.substr(0, labels.find(",le=")) + "}";
          CHECK(value >= buckets[series]);
          buckets[series] = value;
          if (labels.find("le=\"+Inf\"") != std::string::npos) ends[series] = value;
        }
      }
    }
    for (const auto& [series, value] : ends) {
      const auto& shown = series;
      CAPTURE(shown);
      REQUIRE(values.count(series) == 1);
      CHECK(values.at(series) == value);
    }
  }

  double at(const std::string& series) const {
    CAPTURE(series);
    const auto found = values.find(series);
    REQUIRE(found != values.end());
    return found->second;
  }

  std::map<std::string, std::string> types;
  std::map<std::string, double> values;
  std::map<std::string, double> ends;
};

Socket connect_to(int port) {
  Socket client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return client;
}

std::string ask(int port, const std::string& request) {
  const Socket client = connect_to(port);
  REQUIRE(::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = ::recv(client.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(count));
  return answer;
}

void save_and_load(const std::shared_ptr<PrometheusMetrics>& metrics, const std::string& directory, int ranks) {
  WorldOptions options;
  options.listeners = {metrics};
  on_all_ranks(
      ranks,
      [&](World& world) {
        Checkpointer checkpointer(world);
        StateDict state = common_state(world.rank(), world.size());
        checkpointer.save(state, directory + "/step_1");
        checkpointer.save(state, directory + "/step_2");
        checkpointer.load(state, directory + "/step_2");
        SaveOptions cancelled;
        cancelled.cancellation.emplace();
        cancelled.cancellation->cancel("not wanted");
        CHECK_THROWS_AS(checkpointer.save(state, directory + "/step_3", cancelled), CheckpointException);
        CHECK_THROWS_AS(checkpointer.load(state, directory + "/none"), CheckpointException);
        CHECK(world.shutdown(kEndOfWorld));
      },
      options);
}

TEST_CASE("metrics: counts saves and loads by rank and outcome in Prometheus format") {
  TemporaryDirectory directory;
  const auto metrics = std::make_shared<PrometheusMetrics>();
  CHECK(metrics->port() == 0);
  save_and_load(metrics, directory.path(), 2);
  const Exposed exposed(metrics->text());
  for (const std::string rank : {"rank=\"0\"", "rank=\"1\""}) {
    CHECK(exposed.at("cairn_save_seconds_count{" + rank + ",outcome=\"success\"}") == 2);
    CHECK(exposed.at("cairn_save_seconds_bucket{" + rank + ",outcome=\"success\",le=\"+Inf\"}") == 2);
    CHECK(exposed.at("cairn_save_seconds_bucket{" + rank + ",outcome=\"success\",le=\"0.01\"}") <= 2);
    CHECK(exposed.at("cairn_save_seconds_sum{" + rank + ",outcome=\"success\"}") > 0);
    CHECK(exposed.at("cairn_save_seconds_count{" + rank + ",outcome=\"cancelled\"}") == 1);
    CHECK(exposed.at("cairn_save_phase_seconds_count{" + rank + ",phase=\"write\"}") == 2);
    CHECK(exposed.at("cairn_load_seconds_count{" + rank + ",outcome=\"success\"}") == 1);
    CHECK(exposed.at("cairn_load_seconds_count{" + rank + ",outcome=\"failed\"}") == 1);
    CHECK(exposed.at("cairn_saves_in_progress{" + rank + "}") == 0);
    CHECK(exposed.at("cairn_saves_total{" + rank + ",outcome=\"success\"}") == 2);
    CHECK(exposed.at("cairn_saves_total{" + rank + ",outcome=\"failed\"}") == 0);
    CHECK(exposed.at("cairn_saves_total{" + rank + ",outcome=\"cancelled\"}") == 1);
    CHECK(exposed.at("cairn_loads_total{" + rank + ",outcome=\"failed\"}") == 1);
    CHECK(exposed.values.count("cairn_save_start_timestamp_seconds{" + rank + "}") == 0);
    CHECK(exposed.at("cairn_load_bytes_total{" + rank + "}") > 0);
    CHECK(exposed.at("cairn_save_last_success_timestamp_seconds{" + rank + "}") > 1.6e9);
  }
  // Two saves of 20x20 and 10x10 floats. The plan decides which rank writes which part.
  CHECK(exposed.at("cairn_save_bytes_total{rank=\"0\"}") + exposed.at("cairn_save_bytes_total{rank=\"1\"}") == 2 * 4 * (400 + 100));
  double failures = 0;
  for (const auto& [series, value] : exposed.values)
    if (series.find("cairn_load_failures_total{rank=\"0\",kind=\"raised\",phase=") == 0) failures += value;
  CHECK(failures == 1);
}

CallEvent call_at(std::uint64_t number, int seconds_since_1970) {
  CallEvent event;
  event.call = number;
  event.time = WallTime(std::chrono::seconds(seconds_since_1970));
  return event;
}

TEST_CASE("metrics: the start of the oldest save in progress is told") {
  PrometheusMetrics metrics;
  const auto start = [&] {
    const Exposed exposed(metrics.text());
    const auto found = exposed.values.find("cairn_save_start_timestamp_seconds{rank=\"0\"}");
    return found == exposed.values.end() ? -1 : found->second;
  };
  metrics.on_start(call_at(1, 1000));
  metrics.on_start(call_at(2, 2000));
  CHECK(start() == 1000);
  CallEnd end;
  static_cast<CallEvent&>(end) = call_at(1, 3000);
  metrics.on_end(end);
  CHECK(start() == 2000);
  static_cast<CallEvent&>(end) = call_at(2, 3000);
  metrics.on_end(end);
  CHECK(start() == -1);
  CHECK(Exposed(metrics.text()).at("cairn_saves_total{rank=\"0\",outcome=\"failed\"}") == 2);
}

TEST_CASE("metrics: a rank that waits for others to write is in the phase write, not in finish") {
  const auto metrics = std::make_shared<PrometheusMetrics>();
  CallNotifier notifier(0, {metrics}, nullptr);
  const auto record = [&](int time_ms, EventKind kind, const What& what) {
    ObservedEvent event;
    event.kind = kind;
    event.what = what;
    event.time = MonotonicTime(std::chrono::milliseconds(time_ms));
    event.call = event.attempt = event.checkpointer = 1;
    notifier.on_event(event);
  };
  record(0, EventKind::kCall, Operation::kSave);
  record(1, EventKind::kState, RankState::kMoving);
  record(5, EventKind::kState, RankState::kReported);  // rank 1's store takes 700 ms more
  record(701, EventKind::kState, CoordinatorState::kFinishing);
  record(711, EventKind::kOutcome, Committed::kYes);
  REQUIRE(notifier.flush(kEndOfWorld));
  const Exposed exposed(metrics->text());
  CHECK(exposed.at("cairn_save_phase_seconds_sum{rank=\"0\",phase=\"write\"}") == doctest::Approx(0.7));
  CHECK(exposed.at("cairn_save_phase_seconds_sum{rank=\"0\",phase=\"finish\"}") == doctest::Approx(0.01));
}

TEST_CASE("metrics: the rules for alerts in the documents use metrics that exist") {
  const std::string document = metrics_in(CAIRN_TEST_DATA "/../../docs/operations.md");
  PrometheusMetrics metrics;
  metrics.on_start(call_at(1, 1000));
  const Exposed exposed(metrics.text());
  std::size_t rules = 0;
  for (std::size_t at = document.find("expr: "); at != std::string::npos; at = document.find("expr: ", at + 1)) {
    const std::string rule = document.substr(at, document.find('\n', at) - at);
    static const std::regex name("cairn_[a-z_]+");
    std::smatch found;
    CAPTURE(rule);
    REQUIRE(std::regex_search(rule, found, name));
    CHECK(exposed.types.count(found[0]) == 1);
    ++rules;
  }
  CHECK(rules == 5);
}

TEST_CASE("metrics: a file is replaced as a whole, and one write error is logged") {
  TemporaryDirectory directory;
  PrometheusOptions options;
  options.file = directory.path() + "/cairn.prom";
  options.seconds = {};
  {
    const auto metrics = std::make_shared<PrometheusMetrics>(options);
    Exposed(metrics_in(options.file));  // the file exists from the beginning
    save_and_load(metrics, directory.path() + "/run", 1);
    CHECK(metrics_in(options.file) == metrics->text());
  }
  const Exposed exposed(metrics_in(options.file));
  CHECK(exposed.at("cairn_save_seconds_bucket{rank=\"0\",outcome=\"success\",le=\"+Inf\"}") == 2);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(directory.path())) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"cairn.prom", "run"});

  CapturedLog log;
  options.file = directory.path() + "/nowhere/cairn.prom";
  save_and_load(std::make_shared<PrometheusMetrics>(options), directory.path() + "/other", 1);
  const std::string said = log.text();
  CHECK(said.find("there are no metrics: ") != std::string::npos);
  CHECK(said.find("there are no metrics: ") == said.rfind("there are no metrics: "));
}

TEST_CASE("metrics: the environment asks for one file per rank; a bad port is reported") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/step_1";
  const auto save_into = [&](const std::string& run, const std::string& name) {
    return stderr_of_case("metrics child: a save", {{"CAIRN_METRICS_DIR", directory.path()},
                                                    {"CAIRN_RUN", name},
                                                    {"CAIRN_TEST_PLACE", directory.path() + "/" + run + "/step_1"}});
  };
  CHECK(save_into("a", "named").empty());
  const Exposed named(metrics_in(directory.path() + "/cairn-named-rank-0.prom"));
  CHECK(named.at("cairn_save_seconds_count{rank=\"0\",run=\"named\",outcome=\"success\"}") == 1);
  CHECK(named.at("cairn_running{rank=\"0\",run=\"named\"}") == 0);
  // Jobs that save at different places keep apart; each has one file however often it starts.
  for (const char* const run : {"a", "b c", "a"}) CHECK(save_into(run, "").empty());
  for (const std::string run : {"a", "b c"}) {
    const std::string shown = run == "a" ? "a" : "b_c";
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory.path())) {
      const std::string file = entry.path().filename();
      if (std::regex_match(file, std::regex("cairn-" + shown + "-[0-9a-f]{8}-rank-0\\.prom"))) found.push_back(entry.path());
    }
    REQUIRE(found.size() == 1);
    const Exposed exposed(metrics_in(found.front()));
    CHECK(exposed.at("cairn_saves_total{rank=\"0\",run=\"" + directory.path() + "/" + run + "\",outcome=\"success\"}") == 1);
  }
  const std::string said = stderr_of_case("metrics child: a save", {{"CAIRN_METRICS_PORT", "http"}, {"CAIRN_TEST_PLACE", place}});
  CHECK(said.find("there are no metrics: ") != std::string::npos);
  CHECK(said.find("\"http\" is none") != std::string::npos);
}

TEST_CASE("metrics: the rank and the local rank are the launcher's") {
  TemporaryDirectory directory;
  std::map<std::string, std::string> variables{{"CAIRN_METRICS_DIR", directory.path()},
                                               {"CAIRN_RUN", "job"},
                                               {"CAIRN_METRICS_PORT", std::to_string(free_port() - 1)},
                                               {"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  CHECK(stderr_of_case("metrics child: the port of local rank 1", variables).empty());
  const Exposed exposed(metrics_in(directory.path() + "/cairn-job-rank-3.prom"));
  CHECK(exposed.at("cairn_saves_total{rank=\"3\",run=\"job\",outcome=\"success\"}") == 0);
  // In contradictory variables, RANK and LOCAL_RANK count.
  variables.insert({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}});
  CHECK(stderr_of_case("metrics child: the port of local rank 1", variables).empty());
  CHECK(fs::exists(directory.path() + "/cairn-job-rank-2.prom"));
}

TEST_CASE("metrics child: the port of local rank 1" * doctest::skip()) {
  const auto metrics = metrics_of_environment();
  REQUIRE(metrics);
  CHECK(metrics->port() == std::atoi(std::getenv("CAIRN_METRICS_PORT")) + 1);
}

TEST_CASE("metrics child: a save" * doctest::skip()) {
  const World world = World::single();
  Checkpointer(world).save({{"step", 1}}, std::getenv("CAIRN_TEST_PLACE"));
  CHECK(world.shutdown(kEndOfWorld));
}

TEST_CASE("metrics: are served over HTTP, to loopback, whatever is asked") {
  TemporaryDirectory directory;
  PrometheusOptions options;
  options.address = "127.0.0.1:0";
  const auto metrics = std::make_shared<PrometheusMetrics>(options);
  REQUIRE(metrics->port() > 0);
  save_and_load(metrics, directory.path(), 1);
  const std::string answer = ask(metrics->port(), "GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n");
  CHECK(answer.find("HTTP/1.1 200 OK\r\n") == 0);
  CHECK(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n") != std::string::npos);
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  CHECK(body == metrics->text());
  CHECK(answer.find("Content-Length: " + std::to_string(body.size()) + "\r\n") != std::string::npos);
  Exposed{body};

  CHECK(ask(metrics->port(), "GET /metrics?a=b HTTP/1.0\r\n\r\n").find("HTTP/1.1 200 OK\r\n") == 0);
  for (const std::string& other : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("GET /metrics2 HTTP/1.1\r\n\r\n"),
                                   std::string("POST /metrics HTTP/1.1\r\n\r\n"), std::string("\r\n\r\n"), std::string(8192, 'x')})
    CHECK(ask(metrics->port(), other).find("HTTP/1.1 404 ") == 0);

  options.address = "127.0.0.1:" + std::to_string(metrics->port());
  CHECK_THROWS_AS(PrometheusMetrics{options}, Error);
  options.address = "nonsense";
  CHECK_THROWS_AS(PrometheusMetrics{options}, Error);
  options = {};
  options.seconds = {1, 1};
  CHECK_THROWS_AS(PrometheusMetrics{options}, Error);
}

TEST_CASE("metrics: are served after every system call that a signal interrupts") {
  const Interruptions signals(3);
  const auto text = [] { return std::string("up 1\n"); };
  const MetricsServer server("127.0.0.1:0", text, std::chrono::hours(1));
  const std::string answer = ask(server.port(), "GET /metrics HTTP/1.1\r\n\r\n");
  CHECK(answer.substr(answer.find("\r\n\r\n") + 4) == "up 1\n");
  for (const char* const call : {"poll", "accept4", "recv", "send"}) {
    CAPTURE(call);
    CHECK(Interruptions::count(call) >= 3);
  }
}

TEST_CASE("metrics: clients that hang lose their turn after the deadline") {
  std::atomic<bool> is_first{true};
  const auto text = [&] { return is_first.exchange(false) ? std::string(64u << 20, 'x') : std::string("up 1\n"); };
  const MetricsServer server("127.0.0.1:0", text, std::chrono::milliseconds(200));
  const Socket silent = connect_to(server.port());
  const Socket partial = connect_to(server.port());
  REQUIRE(::send(partial.get(), "GET /", 5, MSG_NOSIGNAL) == 5);
  // Asks for more than the buffers of its connection hold, and receives nothing.
  const Socket deaf = connect_to(server.port());
  REQUIRE(::send(deaf.get(), "GET /metrics \r\n\r\n", 17, MSG_NOSIGNAL) == 17);
  connect_to(server.port()).reset();
  const std::string answer = ask(server.port(), "GET /metrics HTTP/1.1\r\n\r\n");
  CHECK(answer.substr(answer.find("\r\n\r\n") + 4) == "up 1\n");
  char byte = 0;
  CHECK(::recv(silent.get(), &byte, 1, 0) == 0);
  CHECK(::recv(partial.get(), &byte, 1, 0) == 0);
}

TEST_CASE("metrics: the end of the server does not wait for a client") {
  std::optional<MetricsServer> server(
      std::in_place, "127.0.0.1:0", [] { return std::string(64u << 20, 'x'); }, std::chrono::hours(1));
  const Socket client = connect_to(server->port());
  char byte = 0;
  SUBCASE("that sends nothing") {
    server.reset();
    CHECK(::recv(client.get(), &byte, 1, 0) <= 0);
  }
  SUBCASE("that receives nothing more") {
    REQUIRE(::send(client.get(), "GET /metrics \r\n\r\n", 17, MSG_NOSIGNAL) == 17);
    REQUIRE(::recv(client.get(), &byte, 1, 0) == 1);
    server.reset();
  }
}

}  // namespace
}  // namespace cairn::testing
